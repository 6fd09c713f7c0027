// One batch while it is read, and the memory of batches.
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

// The batch is divided into pieces that workers take one by one. It does not depend on the pieces, nor does its error,
// which is that of the first damaged place.
class BatchJob {
 public:
  // `samples`: the samples of all places. `skip`: a damaged sample is replaced instead of being an error.
  BatchJob(const Dataset& dataset, const BatchPlace& place, std::vector<std::int64_t> samples,
           const BatchAllocator& allocate, bool skip);
  // A batch that could not be begun: it has no places, and take() throws the error.
  BatchJob(const Dataset& dataset, std::exception_ptr error)
      : dataset_(dataset), skip_(false), error_(std::move(error)) {}

  // Reads `count` places from `first` on. Threads may read different places at once. Throws nothing.
  void read(std::size_t first, std::size_t count, ThreadUsage& usage);
  // Completes the batch when all places have been read. Throws nothing.
  void finish(ThreadUsage& usage);

  std::size_t places() const { return samples_.size(); }
  // Describes the samples that are being read and their files, for errors about a read that does not end.
  std::string in_reading();
  // Returns the batch after finish(), or throws its error.
  LoadedBatch take();

 private:
  void read_one_by_one(std::size_t first, std::size_t count, const std::exception_ptr& error);
  void read_place(std::size_t place);
  // Reads one of the following samples into the place of a damaged one.
  void replace(std::size_t place, const std::string& damage);
  void keep_error(std::size_t place, std::exception_ptr error);
  template <typename Work>
  void measured(ThreadUsage& usage, const Work& work);
  bool is_pointless(std::size_t place);

  const Dataset& dataset_;
  const bool skip_;
  std::vector<std::int64_t> samples_;
  std::unique_ptr<BatchBuilder> builder_;
  std::mutex mutex_;                                       // guards the members below, until finish()
  std::set<std::pair<std::size_t, std::size_t>> reading_;  // first place and count of pieces
  std::exception_ptr error_;
  std::size_t error_place_ = 0;
  LoadedBatch batch_;
};

// Recycles the buffers of batches, so that a loader in its steady state neither allocates nor touches new pages. A
// buffer returns when its last pointer is destroyed, on any thread; the pool lives as long as its last buffer.
class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  static constexpr std::size_t kAlignment = 64;

  // Makes a pool that keeps at most `keep` idle buffers.
  static std::shared_ptr<BatchPool> create(std::size_t keep);
  ~BatchPool();

  // Returns a buffer of at least `bytes`, at most twice as many. Thread safe. std::bad_alloc if memory is short.
  std::shared_ptr<std::byte> take(std::size_t bytes);

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  explicit BatchPool(std::size_t keep);
  void give_back(Buffer buffer) noexcept;

  const std::size_t keep_;
  std::mutex mutex_;
  std::vector<Buffer> idle_;  // the buffer that returned last is at the end
};

}  // namespace dtrain::data
