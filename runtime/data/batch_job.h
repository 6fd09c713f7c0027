// One batch while it is read, cut into pieces that workers take one by one. Whatever the pieces, the batch is the same,
// and so is its error: that of the first damaged place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/data/dataset.h"
#include "dtrain/data/loader.h"

namespace dtrain::data {

class ThreadUsage;

class BatchJob {
 public:
  // `samples`: of all places. `skip`: a damaged sample is replaced instead of being an error.
  BatchJob(const Dataset& dataset, const BatchPlace& place, std::vector<std::int64_t> samples,
           const BatchAllocator& allocate, bool skip);
  // One that could not be begun: without places, and with an error to take().
  BatchJob(const Dataset& dataset, std::exception_ptr error)
      : dataset_(dataset), skip_(false), error_(std::move(error)) {}

  // Reads the places from `first` on. Threads may do so at once, each other places. Throws nothing.
  void read(std::size_t first, std::size_t count, ThreadUsage& usage);
  // Once all places have been read: completes the batch. Throws nothing.
  void finish(ThreadUsage& usage);

  std::size_t places() const { return samples_.size(); }
  // Which samples are being read now, and from where: for errors about a read that does not end.
  std::string in_reading();
  // After finish(): the batch, or throws its error.
  LoadedBatch take();

 private:
  void read_one_by_one(std::size_t first, std::size_t count, const std::exception_ptr& error);
  void read_place(std::size_t place);
  // Reads a sample that is near the damaged one into its place.
  void replace(std::size_t place, const std::string& damage);
  void keep_error(std::size_t place, std::exception_ptr error);
  template <typename Work>
  void measured(ThreadUsage& usage, const Work& work);
  bool is_pointless(std::size_t place);

  const Dataset& dataset_;
  const bool skip_;
  std::vector<std::int64_t> samples_;
  std::unique_ptr<BatchBuilder> builder_;
  std::mutex mutex_;                                       // guards what follows, until finish()
  std::set<std::pair<std::size_t, std::size_t>> reading_;  // first place and count of pieces
  std::exception_ptr error_;
  std::size_t error_place_ = 0;
  LoadedBatch batch_;
};

}  // namespace dtrain::data
