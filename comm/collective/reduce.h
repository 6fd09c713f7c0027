// The arithmetic of collectives, vectorised for the CPU found at run time: reductions, and conversions between float32
// and the narrow types. Stateless; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "dtrain/comm/types.h"

namespace dtrain::comm {

struct Reduction {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double pre_scale = 1.0;  // every input is multiplied by it; floating point types only, as post_scale
  double post_scale = 1.0;
  int ranks = 1;  // the divisor of kMean
};

// True if the reduction leaves the data of a single rank unchanged.
bool is_identity(const Reduction& reduction, std::size_t inputs);

// Writes in[0] op in[1] op …, reduced in this order, to every `out`. An output may be one of the inputs; otherwise they
// do not overlap. float32 and narrower is reduced in float32 and rounded at the end, float64 in float64, integers wrap.
// Bitwise operations are for other types than floating point. A NaN makes minimum and maximum NaN, whichever input has
// it.
void reduce_into(const Reduction& reduction, std::span<const std::byte* const> in, std::span<std::byte* const> out,
                 std::size_t count);

// Both multiply the values by `scale` in float32 and round to nearest even; values that are too large become infinity.
// `type` is kFloat16 or kBfloat16; `in` and `out` do not overlap.
void to_float32(DataType type, const void* in, float* out, std::size_t count, float scale = 1.0f);
void from_float32(DataType type, const float* in, void* out, std::size_t count, float scale = 1.0f);

}  // namespace dtrain::comm
