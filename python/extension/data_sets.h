// dtrain's own data sets for Python: read by threads of the engine, in memory once per host, and handed over without a
// copy.
#pragma once

#include <map>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// The batches of this rank of a data set in one of the formats of an experiment's `data.format`. `files`: the source's
// keys and values; a path is relative to the experiment's folder. `settings`: the format's own, such as
// sequence_length. ConfigError: a format, a key or a setting that there is not. Collective.
Loader open_data_set(TrialContext& context, const std::string& format, std::map<std::string, std::string> files,
                     const pybind11::dict& settings, const LoaderSettings& loader);

}  // namespace dtrain::python
