// The operators of Python on numbers that stand in an exported program between the operators on tensors: sums and
// products of sizes, and their comparisons.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace dtrain::exported {

using NumberOperator = c10::IValue (*)(const std::vector<c10::IValue>& operands);

// "_operator.add", "math.trunc", "torch.sym_max", …; null if it is none. The operator throws an Error for a division by
// 0 and for an overflow. `operands`: as many as it takes, ints, floats and bools.
struct NamedNumberOperator {
  const char* name;
  std::size_t operands;
  NumberOperator compute;
};
const NamedNumberOperator* number_operator(const std::string& name);

}  // namespace dtrain::exported
