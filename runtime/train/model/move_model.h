// Moves a model to the device that the rank trains on. Plain function; training thread.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace dtrain::train {

// Parameters and buffers keep their identity, their layout in memory and their ties: tensors in the same memory are in
// the same memory afterwards (torch::nn::Module::to() would part those that are two tensors). Waits for the copies.
// Nothing happens where `device` is the CPU. ConfigError as refuse_partial_overlap().
void move_model(torch::nn::Module& model, c10::Device device);

}  // namespace dtrain::train
