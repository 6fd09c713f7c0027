// Ranges that several keys share.
#pragma once

#include "dtrain/config/keys.h"

namespace dtrain::config {

inline constexpr Bounds kFraction{.min = 0, .max = 1, .real = true};
inline constexpr Bounds kNotNegative{.min = 0, .max = 1'000'000, .real = true};
inline constexpr Bounds kAboveZero{.min = 0, .max = 1'000'000, .above_min = true, .real = true};

}  // namespace dtrain::config
