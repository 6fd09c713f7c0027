// Detects a loss that is a sum over the samples. Each rank sums over its own part, and gradients are averaged over the
// ranks, so the gradients of N ranks are 1/N of those that one process computes with the whole batch. Any thread.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace dtrain::train {

// Returns the operation that makes the loss a sum, as far as autograd's graph shows it: 'NllLoss(reduction="sum")',
// "sum()". Looks at the last operations alone, and through additions: a sum that is divided, or multiplied, is taken
// for a mean. Empty: the loss is a mean, or its kind is not known.
std::string sum_over_samples(const at::Tensor& loss);

}  // namespace dtrain::train
