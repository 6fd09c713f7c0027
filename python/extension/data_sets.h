// dtrain's own data sets for Python: read and transformed by threads of the engine, and handed over without a copy.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/base/json.h"
#include "dtrain/train/trial.h"

namespace dtrain::python {

// What the keys of an experiment's `data` section do not say.
struct LoaderPlace {
  std::int64_t batch_size = 1;  // of all ranks together; it divides among them
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  std::chrono::nanoseconds timeout{0};  // 0: next() waits for ever
};

// `keys`: those of an experiment's `data` section, where those of the source stand beside the others instead of under
// `training`: {"format": "image_folder", "folder": "photos", "transforms": […], "workers": 4}. Relative paths start
// from `folder`. ConfigError names what is wrong; DataError as in the function that reads the format's files.

// In a process of its own.
Loader open_loader(const Json& keys, const std::string& folder, const LoaderPlace& place);
// The batches of this rank of a run; data in memory is there once per host. `batch_size`: of all ranks. Collective.
Loader open_data_set(TrialContext& context, const Json& keys, const std::string& folder, std::int64_t batch_size);

}  // namespace dtrain::python
