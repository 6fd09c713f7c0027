// A model for tests of gradient checkpointing: residual blocks with dropout, which share a weight, and batch
// normalization.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "dtrain/train/gradient_checkpointing.h"

namespace dtrain::train {

class ResidualImpl final : public torch::nn::Module {
 public:
  ResidualImpl(std::int64_t width, double dropout, const torch::Tensor& shared)
      : wide_(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * width, width))),
        norm_(register_module("norm", torch::nn::BatchNorm1d(width))),
        drop_(register_module("drop", torch::nn::Dropout(dropout))),
        shared_(register_parameter("shared", shared)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls;
    return x + narrow_(drop_(torch::gelu(wide_(norm_(x.matmul(shared_))))));
  }

  int calls = 0;

 private:
  torch::nn::Linear wide_, narrow_;
  torch::nn::BatchNorm1d norm_;
  torch::nn::Dropout drop_;
  torch::Tensor shared_;
};
TORCH_MODULE(Residual);

class CheckpointedModelImpl final : public torch::nn::Module {
 public:
  struct Options {
    std::int64_t width = 16;
    int blocks = 4;
    double dropout = 0;
  };
  explicit CheckpointedModelImpl(const Options& options)
      : shared_(register_parameter("shared", torch::randn({options.width, options.width}) * 0.2)) {
    for (int i = 0; i < options.blocks; ++i) {
      const auto name = "block" + std::to_string(i);
      blocks.push_back(register_module(name, Residual(options.width, options.dropout, shared_)));
    }
  }
  // The shared weight is also used outside of the blocks.
  torch::Tensor loss(torch::Tensor x, bool checkpointed) {
    for (Residual& block : blocks) x = checkpointed ? checkpoint(block, x) : block(x);
    return x.matmul(shared_).to(torch::kFloat).pow(2).mean();
  }

  std::vector<Residual> blocks;

 private:
  torch::Tensor shared_;
};
TORCH_MODULE(CheckpointedModel);

// The loss, then all gradients, then all buffers.
inline std::vector<at::Tensor> results_of(CheckpointedModel& model, const at::Tensor& loss) {
  std::vector<at::Tensor> results{loss.detach()};
  for (const at::Tensor& parameter : model->parameters()) results.push_back(parameter.grad().clone());
  for (const at::Tensor& buffer : model->buffers()) results.push_back(buffer.clone());
  return results;
}

}  // namespace dtrain::train
