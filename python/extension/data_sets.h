// dtrain's data sets for Python: threads of the engine read and transform them, and Python gets them without a copy.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/base/json.h"
#include "dtrain/train/trial.h"

namespace dtrain::python {

// The settings of a loader that the keys of an experiment's `data` section do not have.
struct LoaderPlace {
  std::int64_t batch_size = 1;  // samples of all ranks together; divisible by their number
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  std::chrono::nanoseconds timeout{0};  // 0: next() waits for ever
};

// Opens a loader in a process without a run. `keys`: those of an experiment's `data` section, with those of the source
// beside the others instead of under `training`: {"format": "image_folder", "folder": "photos", "transforms": […],
// "workers": 4}. Relative paths start from `folder`. ConfigError names the wrong key; DataError: that of the function
// that reads the format's files.

Loader open_loader(const Json& keys, const std::string& folder, const LoaderPlace& place);
// Opens the batches of this rank of a run. A host has data in memory once. `batch_size`: of all ranks. Collective.
Loader open_data_set(TrialContext& context, const Json& keys, const std::string& folder, std::int64_t batch_size);

}  // namespace dtrain::python
