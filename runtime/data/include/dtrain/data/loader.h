// Batches of one rank, prefetched in the background, in an order that is a function of (seed, epoch) alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct LoaderOptions {
  std::int64_t batch_size = 1;   // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true (training): batches are whole and every rank gets the same number; samples left over are skipped this epoch.
  // false (validation): every sample comes exactly once on exactly one rank; the last batches may be short or missing.
  bool drop_last = true;
  std::uint64_t seed = 0;
  int prefetch = 2;              // batches kept ready; 0: loaded when asked for
};

// Memory for one field of a batch; 64-byte aligned.
struct HostBatch {
  std::vector<std::shared_ptr<std::byte>> fields;   // one a field of the data set
  std::int64_t samples = 0;
};

// Iterates one epoch at a time. next() and start_epoch() are called by one thread; reading happens on another. An
// exception of the data set is thrown from next(), in its place in the order.
class SampleLoader {
 public:
  SampleLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~SampleLoader();

  void start_epoch(std::int64_t epoch);
  // Empty at the end of the epoch.
  std::optional<HostBatch> next();

  std::int64_t batches_per_epoch() const;   // of this rank
  std::int64_t samples_per_epoch() const;   // of all ranks together
  std::int32_t queue_depth() const;         // batches ready now
  std::int32_t workers() const;
  const Dataset& dataset() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::data
