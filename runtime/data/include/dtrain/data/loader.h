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

struct LoaderOptions {
  std::int64_t batch_size = 1;  // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true (training): all batches are full and every rank gets the same number; the remaining samples of the epoch are
  // skipped. false (validation): every sample is on exactly one rank, once; the last batches may be short or missing.
  bool drop_last = true;
  std::uint64_t seed = 0;
  int prefetch = 2;  // batches kept ready; 0: next() reads the batch
  // Allocates the memory that batches are read into (page-locked memory); empty: the loader has memory of its own,
  // which it reuses.
  BatchAllocator allocate{};
};

// Iterates over one epoch at a time. One thread calls next() and start_epoch(); another one reads. If the data set
// throws, next() throws the exception for that batch; the call after that continues with the following batch.
class SampleLoader {
 public:
  // DataError as in Sampler.
  SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  // Waits for the batch that is being read, if any; the rest of the epoch is not read.
  ~SampleLoader();

  // Drops the batches of the previous epoch that next() has not returned. The first `first_batch` batches of the new
  // epoch are skipped without reading them.
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
