// Computes the FLOPs of an operator from the shapes of its arguments, like Python's torch.utils.flop_counter (2.11 to
// 2.15): products of matrices, convolutions and attention count, everything else is 0; a multiplication and an addition
// are two FLOPs; biases, causal masks and the padding of a convolution are ignored; the weight's gradient of a grouped
// convolution counts as with one group. Two kinds of operators have FLOPs only here: attention on CPUs (with the
// formulas for GPUs; in Python from 2.15 on) and oneDNN's recurrent layers (counted as their matrix products).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace dtrain::train {

enum class FlopKind : std::uint8_t {
  kMm,                   // [m, k] x [k, n]
  kAddmm,                // after an addend, the arguments of the kind above
  kBmm,                  // [b, m, k] x [b, k, n]
  kBaddbmm,              // after an addend, the arguments of the kind above
  kConvolution,          // arguments of aten::convolution
  kConvolutionBackward,  // arguments of aten::convolution_backward
  kAttention,            // query, key, value of [batch, heads, length, features]
  kAttentionBackward,    // kAttention after the output's gradient
  kRecurrentLayer,       // input [length, batch, features], weight of the input, weight of the state
  kRecurrentLayerBackward
};

// Returns the kind of an operator, named without its overload ("aten::mm"); empty: the operator has no FLOPs.
std::optional<FlopKind> flop_kind(std::string_view name);

// Returns the index of the argument whose type is that of the arithmetic.
std::size_t first_factor(FlopKind kind);

// Returns 0 if the arguments are not those of the kind.
std::int64_t flops_of(FlopKind kind, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace dtrain::train
