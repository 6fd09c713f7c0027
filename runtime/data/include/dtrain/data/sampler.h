// Which samples a rank gets, and in which order: a pure function of (seed, epoch, sizes). So a run can go on within an
// epoch without a stored random generator, and ranks need not communicate about the order.
//
// The order of an epoch is one permutation of the data set, the same on all ranks. Global batch g has the world_size *
// batch_size samples from g * world_size * batch_size on. Rank r takes the r-th contiguous piece of it. So W ranks with
// batches of B see the same global batches as one rank with batches of W * B.
//
// Immutable; any thread may call.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/data/epoch_order.h"

namespace dtrain::data {

struct SamplerOptions {
  std::int64_t batch_size = 1;  // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true: only full global batches; the rest of the epoch is skipped. false: the last global batch may be short. It is
  // divided evenly: ranks differ by at most one sample and at most one batch.
  bool drop_last = true;
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  // DataError if an option is invalid, or if drop_last is set and the data set is smaller than a global batch.
  Sampler(std::int64_t dataset_size, const SamplerOptions& options);

  // All samples of the data set in the order of this epoch.
  EpochOrder order(std::int64_t epoch) const;
  // The part of `order` that is this rank's batch number `batch`.
  std::vector<std::int64_t> batch(const EpochOrder& order, std::int64_t batch) const;

  std::int64_t batches_per_epoch() const;  // of this rank
  std::int64_t samples_per_epoch() const;  // of all ranks together

 private:
  std::int64_t global_batch() const { return options_.world_size * options_.batch_size; }

  std::int64_t size_;
  SamplerOptions options_;
};

}  // namespace dtrain::data
