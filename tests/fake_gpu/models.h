// Two small models with what larger ones consist of.
#pragma once

#include <torch/torch.h>

namespace dtrain::test {

struct ConvNet : torch::nn::Module {
  ConvNet();
  at::Tensor forward(at::Tensor images);  // [n, 1, 14, 14]

  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d batch_norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::nn::Linear last{nullptr};
};

// One block, with the embedding's weight as the last layer's, too.
struct Gpt : torch::nn::Module {
  explicit Gpt(double dropout);
  at::Tensor forward(at::Tensor tokens);

  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm before_attention{nullptr}, before_mlp{nullptr};
  torch::nn::Linear qkv{nullptr}, projection{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

}  // namespace dtrain::test
