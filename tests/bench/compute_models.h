// A GPT and ResNet-18, of bench_compute_trial and of tests/integration/precision_trial.cpp. The same in Python:
// tests/gpu_check/models.py and compute_models.py.
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

inline torch::nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size,
                                     std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t inputs, std::int64_t width, std::int64_t stride)
      : conv1(register_module("conv1", convolution(inputs, width, 3, stride))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(width))),
        conv2(register_module("conv2", convolution(width, width, 3, 1))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(width))) {
    if (stride == 1 && inputs == width) return;
    shortcut = torch::nn::Sequential(convolution(inputs, width, 1, stride), torch::nn::BatchNorm2d(width));
    register_module("shortcut", shortcut);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = norm2(conv2(norm1(conv1(x)).relu_()));
    y += shortcut.is_empty() ? x : shortcut->forward(x);
    return y.relu_();
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Sequential shortcut = nullptr;
};
TORCH_MODULE(BasicBlock);

// torchvision's ResNet-18: the stem for ImageNet. Images [batch, 3, height, width] to scores [batch, classes].
struct ResNet18Impl : torch::nn::Module {
  explicit ResNet18Impl(std::int64_t classes)
      : conv(register_module("conv", convolution(3, 64, 7, 2))),
        norm(register_module("norm", torch::nn::BatchNorm2d(64))) {
    std::int64_t inputs = 64;
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t width = std::int64_t{64} << stage;
      for (int index = 0; index < 2; ++index) {
        blocks->push_back(BasicBlock(inputs, width, stage > 0 && index == 0 ? 2 : 1));
        inputs = width;
      }
    }
    register_module("blocks", blocks);
    out = register_module("out", torch::nn::Linear(inputs, classes));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = at::max_pool2d(norm(conv(x)).relu_(), {3, 3}, {2, 2}, {1, 1});
    return out(blocks->forward(x).mean({2, 3}));
  }

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Sequential blocks;
  torch::nn::Linear out = nullptr;
};
TORCH_MODULE(ResNet18);

}  // namespace dtrain::bench
