// The version of dtrain.
#pragma once

#include <string>

namespace dtrain::run {

// "0.1.0", as in plan.json and the dumps.
std::string version();

}  // namespace dtrain::run
