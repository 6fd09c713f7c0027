// Checks of the trial: before the first step every rank has the same parameters and buffers, and starts from rank 0's
// values; the loss is a mean over the samples.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"

namespace dtrain::train {

// Compares names, shapes, strides, dtypes and requires_grad over the ranks. ConfigError on all of them names the first
// difference of each rank that differs from rank 0. Collective.
void compare_models(const torch::nn::Module& model, comm::ControlPlane& control);

// Copies rank 0's parameters and buffers to all ranks. `communicator`: of the model's device. Collective.
void broadcast_model(const torch::nn::Module& model, comm::Communicator& communicator);
// Copies the buffers alone (running statistics differ between ranks after training).
void broadcast_buffers(const torch::nn::Module& model, comm::Communicator& communicator);

// Detects a loss that is a sum over the samples. Each rank sums over its own part, and gradients are averaged over the
// ranks, so the gradients of N ranks are 1/N of those that one process computes with the whole batch. Any thread.
//
// Returns the operation that makes the loss a sum, as far as autograd's graph shows it: 'NllLoss(reduction="sum")',
// "sum()". Looks at the last operations alone, and through additions: a sum that is divided, or multiplied, is taken
// for a mean. Empty: the loss is a mean, or its kind is not known.
std::string sum_over_samples(const at::Tensor& loss);

}  // namespace dtrain::train
