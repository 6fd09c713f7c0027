// Where the samples of a `model:` experiment are. Private to config.
#pragma once

#include <filesystem>
#include <string>

#include "document/section.h"
#include "dtrain/config/model_job.h"

namespace dtrain::config {

ModelData read_model_data(Section section);

// Relative to the file's folder; empty, and reported, where it is missing or no path.
std::filesystem::path required_path(Section& section, const std::string& key, const std::string& what_it_is);

}  // namespace dtrain::config
