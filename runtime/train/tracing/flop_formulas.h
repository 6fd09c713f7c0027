// Computes the FLOPs of an operator from the shapes of its arguments, like Python's torch.utils.flop_counter (2.11 to
// 2.15): products of matrices, convolutions and attention count, everything else is 0; a multiplication and an addition
// are two FLOPs; biases, causal masks and the padding of a convolution are ignored; the weight's gradient of a grouped
// convolution counts as with one group. Two kinds of operators have FLOPs only here: attention on CPUs (with the
// formulas for GPUs; in Python from 2.15 on) and oneDNN's recurrent layers (counted as their matrix products).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace dtrain::train {

struct FlopFormula {
  std::string_view name;  // of the operator, without its overload: "aten::mm"
  std::int64_t (*flops)(c10::ArrayRef<const c10::IValue> arguments);  // 0 if the arguments are not the operator's
  std::size_t first_factor = 0;  // index of the argument whose type is that of the arithmetic
  bool is_convolution = false;
};

// Returns null for an operator that has no FLOPs.
const FlopFormula* flop_formula(std::string_view name);

}  // namespace dtrain::train
