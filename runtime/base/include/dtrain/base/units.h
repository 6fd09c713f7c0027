// Numbers with units, for people.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/clock.h"

namespace dtrain {

std::string format_bytes(double bytes);          // "25.0 MiB"
std::string format_duration(Nanoseconds value);  // "812 us", "12.3 ms", "4.56 s", "2 min 05 s"
std::string format_rate(double per_second);      // "12,345"
std::string format_percent(double share);        // share 0.1234 -> "12.3%"

}  // namespace dtrain
