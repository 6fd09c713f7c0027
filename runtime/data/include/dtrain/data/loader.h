// Batches of one rank, prefetched in the background, in the order that sampler.h defines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// Gives memory of so many bytes, aligned to 64, which is released with the last pointer to it. Any thread.
using BatchAllocator = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct LoaderOptions {
  std::int64_t batch_size = 1;  // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true (training): batches are whole and every rank gets the same number; samples left over are skipped this epoch.
  // false (validation): every sample comes exactly once on exactly one rank; the last batches may be short or missing.
  bool drop_last = true;
  std::uint64_t seed = 0;
  int prefetch = 2;  // batches kept ready; 0: loaded when asked for
  // Where batches are read to (page-locked memory); empty: to memory that the loader uses again.
  BatchAllocator allocate{};
};

// Memory for one field of a batch; 64-byte aligned. It goes back when the last pointer to it goes, to the loader's pool
// or to LoaderOptions::allocate; it may be kept for longer than the loader lives, and let go on any thread.
struct HostBatch {
  std::vector<std::shared_ptr<std::byte>> fields;  // one a field of the data set
  std::int64_t samples = 0;
  std::chrono::nanoseconds fetch_time{0};  // how long reading it took
};

// Iterates one epoch at a time. next() and start_epoch() are called by one thread; reading happens on another. An
// exception of the data set is thrown from next(), in its place in the order; the next call goes on behind it.
class SampleLoader {
 public:
  // DataError as Sampler's.
  SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  // Waits for the batch being read, if any; the rest of the epoch is not read.
  ~SampleLoader();

  // Batches of the epoch before that were not asked for are dropped. The first `first_batch` batches of the epoch are
  // left out, and not read.
  void start_epoch(std::int64_t epoch, std::int64_t first_batch = 0);
  // Empty at the end of the epoch, and before the first one is started.
  std::optional<HostBatch> next();

  std::int64_t batches_per_epoch() const;  // of this rank
  std::int64_t samples_per_epoch() const;  // of all ranks together
  std::int32_t queue_depth() const;        // batches ready now
  std::int32_t workers() const;            // threads that read: 1, or 0 without prefetch
  const Dataset& dataset() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::data
