// The operators of Python on numbers in an exported program, such as sums, products and comparisons of sizes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace dtrain::exported {

using NumberOperator = c10::IValue (*)(const std::vector<c10::IValue>& operands);

// An operator on numbers: "_operator.add", "math.trunc", "torch.sym_max", …. `compute` takes `operands` ints, floats
// and bools, and throws an Error for a division by 0 and for an overflow.
struct NamedNumberOperator {
  const char* name;
  std::size_t operands;
  NumberOperator compute;
};
// Returns the operator with this name; null: there is none.
const NamedNumberOperator* number_operator(const std::string& name);

}  // namespace dtrain::exported
