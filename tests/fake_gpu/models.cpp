#include "models.h"

namespace dtrain::test {

namespace {

constexpr int kWidth = 32, kHeads = 4, kTokens = 50;

}  // namespace

ConvNet::ConvNet() {
  first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
  batch_norm = register_module("batch_norm", torch::nn::BatchNorm2d(4));
  second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).stride(2)));
  layer_norm = register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8 * 6 * 6})));
  last = register_module("last", torch::nn::Linear(8 * 6 * 6, 10));
}

at::Tensor ConvNet::forward(at::Tensor images) {
  const auto x = at::relu(batch_norm(first(images)));
  return last(layer_norm(at::relu(second(x)).flatten(1)));
}

Gpt::Gpt(double p) {
  embedding = register_module("embedding", torch::nn::Embedding(kTokens, kWidth));
  before_attention = register_module("before_attention", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  before_mlp = register_module("before_mlp", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  projection = register_module("projection", torch::nn::Linear(kWidth, kWidth));
  up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
  dropout = register_module("dropout", torch::nn::Dropout(p));
}

at::Tensor Gpt::forward(at::Tensor tokens) {
  at::Tensor x = embedding(tokens);
  const auto heads =
      qkv(before_attention(x)).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
  const auto attended = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
  x = x + dropout(projection(attended.transpose(1, 2).reshape(x.sizes())));
  x = x + dropout(down(at::gelu(up(before_mlp(x)), "tanh")));
  return at::matmul(x, embedding->weight.t());
}

}  // namespace dtrain::test
