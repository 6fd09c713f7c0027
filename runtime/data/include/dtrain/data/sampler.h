// Determines the samples of each rank: a pure function of (seed, epoch, position, sizes). So a run can continue within
// an epoch without a stored random generator, and ranks need not communicate about the order.
//
// The order of an epoch is one permutation of the data set, the same on all ranks (epoch_order.h). A run walks through
// it in global batches of world_size * batch_size samples. Rank r takes the r-th contiguous piece of each. So W ranks
// with batches of B see the same global batches as one rank with batches of W * B, and a run continues from a position
// with any number of ranks and any batch size.
//
// Immutable; any thread may call.
#pragma once

#include <cstdint>
#include <memory>

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
  Sampler(std::shared_ptr<const BlockTable> table, const SamplerOptions& options);

  EpochOrder order(std::int64_t epoch) const;
  // This rank's part of the global batch that begins at `position`, at most size(): positions of the order.
  struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  Part part(std::int64_t position) const;

  // Batches of this rank from `position` on, to the end of the epoch.
  std::int64_t batches_from(std::int64_t position) const;
  std::int64_t samples_per_epoch() const;  // of all ranks together
  std::int64_t global_batch() const { return options_.world_size * options_.batch_size; }
  std::int64_t size() const { return table_->size(); }
  const BlockTable& blocks() const { return *table_; }

 private:
  std::shared_ptr<const BlockTable> table_;
  SamplerOptions options_;
};

}  // namespace dtrain::data
