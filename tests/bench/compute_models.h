// A GPT, of bench_compute_trial and of tests/integration/precision_trial.cpp. The same in Python:
// tests/gpu_check/models.py and compute_models.py. ResNet-18 is examples/images/resnet18.h.
#pragma once

#include <torch/torch.h>

namespace dtrain::bench {

struct GptSizes {
  std::int64_t tokens = 0;  // of the vocabulary
  std::int64_t length = 0;  // tokens of a sample
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;
  bool bias = true;  // of the attention's queries, keys and values
};

// As Python's: torch::nn::Linear adds the bias to inputs of three dimensions in an operation of its own, which rounds
// once more under autocast.
inline torch::Tensor affine(const torch::nn::Linear& linear, const torch::Tensor& x) {
  return torch::linear(x, linear->weight, linear->bias);
}

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptSizes& sizes)
      : heads(sizes.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        attention(register_module(
            "attention", torch::nn::Linear(torch::nn::LinearOptions(sizes.width, 3 * sizes.width).bias(sizes.bias)))),
        projection(register_module("projection", torch::nn::Linear(sizes.width, sizes.width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        up(register_module("up", torch::nn::Linear(sizes.width, 4 * sizes.width))),
        down(register_module("down", torch::nn::Linear(4 * sizes.width, sizes.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    std::vector<torch::Tensor> parts = affine(attention, norm1(x)).split(width, 2);  // queries, keys, values
    for (torch::Tensor& part : parts) part = part.view({batch, length, heads, -1}).transpose(1, 2);
    const auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    x = x + affine(projection, y.transpose(1, 2).reshape({batch, length, width}));
    return x + affine(down, at::gelu(affine(up, norm2(x)), "tanh"));
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear attention, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(GptBlock);

// GPT-2's architecture without dropout; scores share their weight with the embedding of tokens.
// Tokens [batch, length] to scores [batch, length, tokens].
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptSizes& sizes)
      : tokens(register_module("tokens", torch::nn::Embedding(sizes.tokens, sizes.width))),
        positions(register_parameter("positions", torch::zeros({sizes.length, sizes.width}))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(GptBlock(sizes));
    register_module("blocks", blocks);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto x = blocks->forward(tokens(input) + positions.narrow(0, 0, input.size(1)));
    return torch::linear(norm(x), tokens->weight);
  }

  torch::nn::Embedding tokens;
  torch::Tensor positions;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

}  // namespace dtrain::bench
