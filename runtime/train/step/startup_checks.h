// Checks before the first step: every rank has the same parameters and buffers, and starts from rank 0's values.
#pragma once

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

}  // namespace dtrain::train
