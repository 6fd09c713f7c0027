// A decoder-only language model: GPT-2's architecture with tied output weights, and the sampling of text from it.
// make_model.py has the same model in Python, with the same names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <dtrain/dtrain.h>

struct GptSizes {
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t length = 128;  // tokens in the model's context
  double dropout = 0;
};

constexpr std::int64_t kVocabulary = 256;  // a token is a byte

// Replaces linear->forward(x), which adds the bias in a separate pass if x has three dimensions.
inline torch::Tensor affine(const torch::nn::Linear& linear, const torch::Tensor& x) {
  return torch::linear(x, linear->weight, linear->bias);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptSizes& sizes)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        attention(register_module("attention", torch::nn::Linear(sizes.width, 3 * sizes.width))),
        projection(register_module("projection", torch::nn::Linear(sizes.width, sizes.width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        up(register_module("up", torch::nn::Linear(sizes.width, 4 * sizes.width))),
        down(register_module("down", torch::nn::Linear(4 * sizes.width, sizes.width))),
        heads(sizes.heads),
        dropout(sizes.dropout) {}

  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = affine(attention, norm1(x)).split(width, 2);  // queries, keys, values
    for (torch::Tensor& part : parts) part = part.view({batch, length, heads, width / heads}).transpose(1, 2);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    x = x + drop(affine(projection, mixed.transpose(1, 2).reshape({batch, length, width})));
    return x + drop(affine(down, torch::gelu(affine(up, norm2(x)), "tanh")));
  }

  torch::Tensor drop(const torch::Tensor& x) const {
    return dropout > 0 ? torch::dropout(x, dropout, is_training()) : x;
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear attention, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  std::int64_t heads;
  double dropout;
};
TORCH_MODULE(Block);

// Maps tokens [batch, length] to scores of the next token [batch, length, 256].
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptSizes& sizes)
      : tokens(register_module("tokens", torch::nn::Embedding(kVocabulary, sizes.width))),
        positions(register_module("positions", torch::nn::Embedding(sizes.length, sizes.width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(Block(sizes));
    register_module("blocks", blocks);
    // GPT-2's initial values, with which the residual sums do not grow with the number of layers.
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : named_parameters()) {
      const std::string& name = parameter.key();
      const bool ends_branch = name.ends_with("projection.weight") || name.ends_with("down.weight");
      if (name.ends_with(".bias")) parameter.value().zero_();
      if (parameter.value().dim() == 2) {
        parameter.value().normal_(0, ends_branch ? 0.02 / std::sqrt(2.0 * static_cast<double>(sizes.layers)) : 0.02);
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto places = torch::arange(input.size(1), input.options());
    const auto x = blocks->forward(tokens(input) + positions(places));
    return torch::linear(norm(x), tokens->weight);  // tied: the output layer is the embedding
  }

  torch::nn::Embedding tokens, positions;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

// Continues `text` by `bytes` bytes, sampled with a temperature; temperature 0 takes the likeliest byte each time. The
// same weights, device and seed give the same text. Computes the whole context for each byte, which is simple but slow
// for large models.
inline std::string continue_text(Gpt& model, std::string text, std::int64_t bytes, double temperature,
                                 std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto length = static_cast<std::size_t>(model->positions->weight.size(0));
  for (std::int64_t i = 0; i < bytes; ++i) {
    std::string context = text.substr(text.size() - std::min(text.size(), length));
    const auto input = torch::from_blob(context.data(), {1, static_cast<std::int64_t>(context.size())}, torch::kUInt8);
    const auto scores =
        model(input.to(model->tokens->weight.device(), torch::kLong)).select(1, -1).cpu().to(at::kFloat);
    const auto next =
        temperature > 0 ? torch::multinomial((scores / temperature).softmax(1), 1, false, generator) : scores.argmax(1);
    text += static_cast<char>(next.item<std::int64_t>());
  }
  return text;
}
