#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "numerics/kernels.h"
#include "numerics/own_operators.h"
#include "numerics/parallel.h"

namespace dtrain::train {
namespace {

using Mask = std::optional<at::Tensor>;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of query, key and value

constexpr std::int64_t kMostTokens = 512;        // most tokens of a head, which is computed at once
constexpr std::int64_t kScoresAtOnce = 1 << 16;  // scores of several heads; in float32 they stay in a core's cache

// The inputs of several heads of one sample: [heads, tokens, features].
struct Heads {
  at::Tensor query, key, value;  // bfloat16, like of_result and result
  at::Tensor of_result, result;
  at::Tensor logsumexp;  // float32, [heads, queries]
  at::Tensor mask;       // float32, [heads, queries, keys], or undefined
  bool causal = false;
  float scale = 1;
};

// Computes the scores again from query, key and logsumexp. Softmax, its gradient and their inputs are in float32;
// probabilities and the gradients of scores are rounded to bfloat16 for the products with values, keys and queries.
Gradients gradients_of_heads(const Heads& heads) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
  const at::Tensor of_result = wide(heads.of_result);
  const at::Tensor scores = at::bmm(wide(heads.query), wide(heads.key).transpose(1, 2));
  const at::Tensor of_probabilities = at::bmm(of_result, wide(heads.value).transpose(1, 2));
  const at::Tensor weighted = of_result.mul(wide(heads.result)).sum(-1);
  const at::Tensor probabilities = at::empty(scores.sizes(), heads.query.options());
  const at::Tensor of_scores = at::empty_like(probabilities);
  const at::Tensor logsumexp = heads.logsumexp.contiguous();
  const std::int64_t queries = scores.size(1), keys = scores.size(2);
  kernels::AttentionRow row;
  row.keys = static_cast<std::size_t>(keys);
  row.scale = heads.scale;
  const auto* const scores_data = scores.const_data_ptr<float>();
  const auto* const gradients_data = of_probabilities.const_data_ptr<float>();
  const auto* const mask_data = heads.mask.defined() ? heads.mask.const_data_ptr<float>() : nullptr;
  auto* const to_probabilities = static_cast<kernels::Bfloat16*>(probabilities.mutable_data_ptr());
  auto* const to_scores = static_cast<kernels::Bfloat16*>(of_scores.mutable_data_ptr());
  for (std::int64_t i = 0; i < scores.size(0) * queries; ++i) {
    row.scores = scores_data + i * keys;
    row.of_probabilities = gradients_data + i * keys;
    row.mask = mask_data ? mask_data + i * keys : nullptr;
    row.attended = static_cast<std::size_t>(heads.causal ? std::min(keys, i % queries + 1) : keys);
    row.logsumexp = logsumexp.const_data_ptr<float>()[i];
    row.weighted = weighted.const_data_ptr<float>()[i];
    kernels::attention_row(row, to_probabilities + i * keys, to_scores + i * keys);
  }
  return {at::bmm(of_scores, heads.key), at::bmm(of_scores.transpose(1, 2), heads.query),
          at::bmm(probabilities.transpose(1, 2), heads.of_result)};
}

// Tensors are [samples, heads, tokens, features]. Threads divide the heads; the results do not depend on their number.
Gradients attention_backward(const at::Tensor& of_result, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, const at::Tensor& result, const at::Tensor& logsumexp,
                             bool causal, const Mask& mask, std::optional<double> scale) {
  const std::int64_t samples = query.size(0), heads = query.size(1), queries = query.size(2), keys = key.size(2);
  const at::Tensor all_masks = mask ? mask->expand({samples, heads, queries, keys}) : at::Tensor();
  const at::Tensor of_query = at::empty_like(query), of_key = at::empty_like(key), of_value = at::empty_like(value);
  const std::int64_t at_once = std::clamp<std::int64_t>(kScoresAtOnce / (queries * keys), 1, heads);
  const std::int64_t parts = (heads + at_once - 1) / at_once;  // number of parts of a sample
  parallel_for(samples * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % parts * at_once, count = std::min(at_once, heads - first);
      const auto part = [&](const at::Tensor& of) { return of.select(0, i / parts).narrow(0, first, count); };
      Heads some{part(query), part(key), part(value), part(of_result), part(result), part(logsumexp), {}, causal};
      if (mask) some.mask = part(all_masks).to(at::kFloat).contiguous();
      some.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3)))));
      const auto [q, k, v] = gradients_of_heads(some);
      part(of_query).copy_(q);
      part(of_key).copy_(k);
      part(of_value).copy_(v);
    }
  });
  return {of_query, of_key, of_value};
}

// libtorch's kernel multiplies blocks of 32 rows, each in a call of oneDNN that costs more than the product. With many
// tokens its blocks are longer, and it skips scores that a causal mask hides, so only few tokens are computed here.
bool is_known(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout) {
  return is_plain(query) && is_plain(key) && is_plain(value) && query.scalar_type() == at::kBFloat16 && dropout == 0 &&
         query.size(1) == key.size(1) && query.numel() > 0 && key.numel() > 0 &&
         std::max(query.size(2), key.size(2)) <= kMostTokens;
}

constexpr const char* kAttentionBackward = "dtrain::attention_backward";

class Attention : public torch::autograd::Function<Attention> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& query,
                                                const at::Tensor& key, const at::Tensor& value, bool causal,
                                                const Mask& mask, std::optional<double> scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [result, logsumexp] =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, causal, mask, scale);
    context->save_for_backward({query, key, value, result, logsumexp, mask.value_or(at::Tensor())});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    context->mark_non_differentiable({logsumexp});
    return {result, logsumexp};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2], &result = saved[3], &logsumexp = saved[4];
    const Mask mask = saved[5].defined() ? Mask(saved[5]) : std::nullopt;
    const bool causal = context->saved_data["causal"].toBool();
    const auto scale = context->saved_data["scale"].toOptional<double>();
    // With create_graph the gradient must be differentiable, which libtorch refuses.
    const bool ours = !at::GradMode::is_enabled() && is_plain(gradients[0]);
    const auto [of_query, of_key, of_value] =
        ours ? call_operator<decltype(attention_backward)>(kAttentionBackward, gradients[0], query, key, value, result,
                                                           logsumexp, causal, mask, scale)
             : at::_scaled_dot_product_flash_attention_for_cpu_backward(gradients[0], query, key, value, result,
                                                                        logsumexp, 0, causal, mask, scale);
    return {of_query, of_key, of_value, {}, {}, {}};
  }
};

const LibtorchKernel* libtorchs_attention = nullptr;

std::tuple<at::Tensor, at::Tensor> attention(c10::DispatchKeySet keys, const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, double dropout, bool causal, const Mask& mask,
                                             std::optional<double> scale) {
  if (is_known(query, key, value, dropout)) {
    const auto results = Attention::apply(query, key, value, causal, mask, scale);
    return {results[0], results[1]};
  }
  const auto results = libtorchs_attention->call(keys, query, key, value, dropout, causal, mask, scale);
  return {results[0].toTensor(), results[1].toTensor()};
}

}  // namespace

void add_attention(torch::Library& own, torch::Library& aten) {
  libtorchs_attention = new LibtorchKernel("aten::_scaled_dot_product_flash_attention_for_cpu");  // never freed
  own.def(
      "attention_backward(Tensor of_result, Tensor query, Tensor key, Tensor value, Tensor result, Tensor logsumexp, "
      "bool causal, Tensor? mask, float? scale) -> (Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(attention_backward)));
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
}

}  // namespace dtrain::train
