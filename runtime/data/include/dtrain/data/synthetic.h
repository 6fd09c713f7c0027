// Generated data of any size, with the same bits on every machine. The task is so easy that a model visibly learns it.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct SyntheticOptions {
  std::int64_t samples = 10'000;
  // Index of the first sample in the endless sequence that `seed` defines. A validation set of the same task begins
  // where the training set ends.
  std::int64_t first = 0;
  std::int64_t features = 32;
  std::int64_t classes = 10;  // 0: a regression task
  std::int64_t targets = 1;   // outputs of a regression task
  std::uint64_t seed = 0;
};

// "features": float32 [features]. With classes also "label": int64 (each class is a point, and its samples lie around
// it). Without classes "target": float32 [targets] (linear in the features). Sample i is a function of (seed, i) and
// the sizes. In memory once per host. DataError names an invalid option.
std::shared_ptr<Dataset> make_synthetic(const SyntheticOptions& options, const HostShare& share = no_sharing());

}  // namespace dtrain::data
