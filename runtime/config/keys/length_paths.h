// The paths of the keys that are lengths. Private to config.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/keys.h"

namespace dtrain::config {

// "searcher.max_length", ...
std::vector<std::string> length_paths(const Keys::Declare& declare);

}  // namespace dtrain::config
