// ResNet-18 (He et al. 2016) like torchvision's: maps images [batch, 3, height, width] to scores [batch, classes].
#pragma once

#include <dtrain/dtrain.h>

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
