// The version of the running dtrain, as in `dtrain version`, plan.json and the dumps.
#pragma once

#include <string>

namespace dtrain::run {
std::string version();
}
