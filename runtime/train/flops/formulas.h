// FLOPs of an operator from the shapes of its arguments, as Python's torch.utils.flop_counter (2.11 to 2.15) has them:
// products of matrices, convolutions and attention count, everything else is 0; a multiplication and an addition are
// two FLOPs; biases, causal masks and the padding of a convolution are left out; the weight's gradient of a grouped
// convolution counts as if it had one group. Two kinds of operators have FLOPs here and none there: attention on CPUs
// (the formulas of attention on GPUs; there from 2.15 on) and oneDNN's recurrent layers (as the matrix products that
// they are made of).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace dtrain::train {

enum class FlopKind : std::uint8_t {
  kMm,                   // [m, k] x [k, n]
  kAddmm,                // the same after an addend
  kBmm,                  // [b, m, k] x [b, k, n]
  kBaddbmm,              // the same after an addend
  kConvolution,          // of arguments as aten::convolution has them
  kConvolutionBackward,  // as aten::convolution_backward
  kAttention,            // query, key, value of [batch, heads, length, features]
  kAttentionBackward,    // the same after the output's gradient
  kRecurrentLayer,       // input [length, batch, features], weight of the input, weight of the state
  kRecurrentLayerBackward
};

// The kind of an operator without its overload ("aten::mm"); empty: it has no FLOPs.
std::optional<FlopKind> flop_kind(std::string_view name);

// The place of the tensor whose type the arithmetic has, among the arguments.
std::size_t first_factor(FlopKind kind);

// 0 where the arguments are not as the kind has them.
std::int64_t flops_of(FlopKind kind, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace dtrain::train
