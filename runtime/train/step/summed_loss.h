// A loss that is a sum over the samples. Each rank sums over its own part, and the gradients of ranks are averaged, so
// those of N ranks are a part 1/N of what one process with the whole batch computes. Any thread.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace dtrain::train {

// Which operation makes it one, as far as autograd's graph shows that: 'NllLoss(reduction="sum")', "sum()". Looks at
// the last operations alone, and through additions: a sum that is divided, or multiplied, is taken for a mean. Empty: a
// mean, or not known.
std::string sum_over_samples(const at::Tensor& loss);

}  // namespace dtrain::train
