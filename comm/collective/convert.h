// Converts between float32 and the narrow types, vectorised for the CPU found at run time. Rounds to nearest even;
// values that are too large become infinity. Stateless; any thread.
#pragma once

#include <cstddef>

#include "dtrain/comm/types.h"

namespace dtrain::comm {

// `type` is kFloat16 or kBfloat16; `in` and `out` do not overlap. Both multiply the values by `scale` in float32.
void to_float32(DataType type, const void* in, float* out, std::size_t count, float scale = 1.0f);
void from_float32(DataType type, const float* in, void* out, std::size_t count, float scale = 1.0f);

}  // namespace dtrain::comm
