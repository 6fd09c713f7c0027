// When the batches of an attempt ended, from the dumps of its ranks on this host, which may still grow. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

namespace dtrain::analysis {

// Times are nanoseconds of this host's monotonic clock.
struct BatchTime {
  std::int64_t batch = 0;
  std::int64_t start_ns = 0, end_ns = 0;
};

class BatchTimes {
 public:
  // `profile`: the folder of the dumps. `watched`: the batch that of() knows.
  BatchTimes(std::filesystem::path profile, std::int64_t watched);
  ~BatchTimes();
  BatchTimes(BatchTimes&&) noexcept;
  BatchTimes& operator=(BatchTimes&&) noexcept;

  // Reads what is new.
  void poll();
  // Returns the first batch, from the start of the rank that began it first; empty: none has been read.
  std::optional<BatchTime> first() const;
  // Returns the last batch of any rank, and its end on the last rank that ended it.
  std::optional<BatchTime> last() const;
  // Returns the last batch of this rank. It is 0 with the end of the initialization if the rank has begun its first
  // batch and ended none. Empty: the rank has not begun a batch, or has no dump here.
  std::optional<BatchTime> last_of(int rank) const;
  // Returns the watched batch, up to its end on the last rank; empty: not every rank has ended it.
  std::optional<BatchTime> watched() const;

 private:
  class OfRank;
  std::filesystem::path profile_;
  std::int64_t watched_;
  std::map<int, std::unique_ptr<OfRank>> ranks_;
};

}  // namespace dtrain::analysis
