// Orthonormal vectors with the span of those given, as comm/compression/orthogonalize.h has them, for many sets at once
// and in tensor operations. Plain functions; on the current stream, nothing waits.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace dtrain::train {

// `count` vectors of `length`: the fixed numbers that stand in for vectors in the span of others. On the CPU.
at::Tensor stand_ins(std::int64_t count, std::int64_t length);

// `sets` x vectors x elements, float32: of each set the vectors become orthonormal, by Gram-Schmidt in float64, each
// vector twice. A vector in the span of those before it becomes its stand-in (the same shape) without that span. Sets
// with NaN or Inf become NaN throughout.
void orthonormalize(const at::Tensor& sets, const at::Tensor& stand_ins);

}  // namespace dtrain::train
