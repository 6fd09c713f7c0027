// The version of dtrain that is running, in `dtrain version`, plan.json and the dumps.
#pragma once

#include <string>

namespace dtrain::run {
std::string version();
}
