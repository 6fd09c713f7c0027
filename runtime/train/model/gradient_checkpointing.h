// Gradient checkpointing: a part of the model keeps only its inputs for backward, which computes the part again
// (dtrain::checkpoint() in dtrain/train/gradient_checkpointing.h).
#pragma once

#include <memory>

#include <torch/nn/module.h>

namespace dtrain::train {

// Sets the model whose buffers are watched in the parts that the calling thread computes from now on. Buffers that such
// a part writes (the running statistics of a batch normalization) change only once in a batch, though it is computed
// twice.
void watch_buffers_of(const std::shared_ptr<torch::nn::Module>& model);

}  // namespace dtrain::train
