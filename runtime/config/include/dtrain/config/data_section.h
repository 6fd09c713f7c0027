// A `data` section that no file has: a program gives it as JSON (dtrain.data.Loader of Python does).
#pragma once

#include <filesystem>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/config/model_data.h"

namespace dtrain::config {

// The section, read and checked as that of an experiment with a `model:`. Relative paths start from `folder`.
// ConfigError with all that is wrong: "key: message", one a line.
ModelData read_data_section(const Json& section, const std::filesystem::path& folder);

// The names of the keys that belong under `training` and `validation`.
std::vector<std::string> keys_of_sources();

}  // namespace dtrain::config
