#include "tracing/flop_formulas.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

namespace dtrain::train {
namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;
using Sizes = at::IntArrayRef;

// Returns the sizes of the tensor at a place; empty: there is no tensor with at least `dimensions` dimensions.
std::optional<Sizes> sizes_at(Arguments arguments, std::size_t place, std::size_t dimensions) {
  if (place >= arguments.size() || !arguments[place].isTensor()) return std::nullopt;
  const at::Tensor& tensor = arguments[place].toTensor();
  if (!tensor.defined() || tensor.is_nested() || tensor.sizes().size() < dimensions) return std::nullopt;
  return tensor.sizes();
}

// Returns the value of a dimension. `values`: one for each spatial dimension, or one for all.
std::int64_t at_dimension(const std::vector<std::int64_t>& values, std::size_t i) {
  return values.empty() ? 0 : values[std::min(i, values.size() - 1)];
}

// A product of matrices at `place` and after it. `dimensions`: 3 for a batch of matrices.
template <std::size_t place, std::size_t dimensions>
std::int64_t product_of(Arguments arguments) {
  const auto a = sizes_at(arguments, place, dimensions);
  const auto b = sizes_at(arguments, place + 1, dimensions);
  return a && b ? 2 * c10::multiply_integers(*a) * b->back() : 0;
}

// Places in aten::convolution: input, weight, bias, stride, padding, dilation, transposed.
std::int64_t convolution(Arguments arguments) {
  const auto x = sizes_at(arguments, 0, 3);
  const auto w = sizes_at(arguments, 1, 3);
  if (!x || !w || arguments.size() < 7 || x->size() != w->size()) return 0;
  for (const std::size_t place : {3, 4, 5}) {
    if (!arguments[place].isIntList()) return 0;
  }
  const bool transposed = arguments[6].toBool();
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector(),
             dilation = arguments[5].toIntVector();
  std::int64_t points = 1;  // of the output; of the input if transposed
  for (std::size_t i = 2; i < x->size(); ++i) {
    const std::int64_t span = at_dimension(dilation, i - 2) * ((*w)[i] - 1) + 1;
    const std::int64_t step = std::max<std::int64_t>(1, at_dimension(stride, i - 2));
    points *= transposed ? (*x)[i] : ((*x)[i] + 2 * at_dimension(padding, i - 2) - span) / step + 1;
  }
  return 2 * (*x)[0] * points * c10::multiply_integers(*w);
}

// Places: gradient of the output, input, weight, sizes of the bias, stride, padding, dilation, transposed, padding of
// the output, groups, which gradients are made.
std::int64_t convolution_backward(Arguments arguments) {
  const auto grad = sizes_at(arguments, 0, 3);
  const auto x = sizes_at(arguments, 1, 3);
  const auto w = sizes_at(arguments, 2, 3);
  if (!grad || !x || !w || arguments.size() < 11 || !arguments[10].isBoolList()) return 0;
  const bool transposed = arguments[7].toBool();
  const auto made = arguments[10].toBoolList();
  std::int64_t flops = 0;
  if (made[0]) {  // a convolution of the gradient, transposed if the forward is not
    flops += 2 * (*grad)[0] * c10::multiply_integers((transposed ? *x : *grad).slice(2)) * c10::multiply_integers(*w);
  }
  if (made[1]) {  // of the input with the gradient, whose channels are the batch
    const Sizes filter = (transposed ? *x : *grad).slice(2);
    flops +=
        2 * (*grad)[1] * (*x)[1] * (*grad)[0] * c10::multiply_integers(w->slice(2)) * c10::multiply_integers(filter);
  }
  return flops;
}

struct AttentionSizes {
  std::int64_t pairs = 0;  // number of pairs of queries and keys, over all heads
  std::int64_t query_features = 0, value_features = 0;
};

std::optional<AttentionSizes> attention_sizes(Arguments arguments, std::size_t query_place) {
  const auto query = sizes_at(arguments, query_place, 4);
  const auto key = sizes_at(arguments, query_place + 1, 4);
  const auto value = sizes_at(arguments, query_place + 2, 4);
  if (!query || !key || !value) return std::nullopt;
  return AttentionSizes{(*query)[0] * (*query)[1] * (*query)[2] * (*key)[2], (*query)[3], (*value)[3]};
}

// Places: query, key, value of [batch, heads, length, features].
std::int64_t attention_flops(Arguments arguments) {
  const auto sizes = attention_sizes(arguments, 0);
  return sizes ? 2 * sizes->pairs * (sizes->query_features + sizes->value_features) : 0;
}

// The same after the output's gradient: the scores again, and two products for each forward product.
std::int64_t attention_backward_flops(Arguments arguments) {
  const auto sizes = attention_sizes(arguments, 1);
  return sizes ? 2 * sizes->pairs * (3 * sizes->query_features + 2 * sizes->value_features) : 0;
}

// Places: input [length, batch, features], weight of the input, weight of the state.
std::int64_t recurrent_layer(Arguments arguments) {
  const auto input = sizes_at(arguments, 0, 3);
  const auto of_input = sizes_at(arguments, 1, 2);
  const auto of_state = sizes_at(arguments, 2, 2);
  if (!input || !of_input || !of_state) return 0;
  return 2 * (*input)[0] * (*input)[1] * (c10::multiply_integers(*of_input) + c10::multiply_integers(*of_state));
}

std::int64_t recurrent_layer_backward(Arguments arguments) {
  return 2 * recurrent_layer(arguments);
}

constexpr FlopFormula kFormulas[] = {
    {"aten::mm", product_of<0, 2>},
    {"aten::addmm", product_of<1, 2>, 1},  // after an addend, the arguments of mm
    {"aten::bmm", product_of<0, 3>},
    {"aten::baddbmm", product_of<1, 3>, 1},
    {"aten::convolution", convolution, 0, true},
    {"aten::_convolution", convolution, 0, true},
    {"aten::convolution_backward", convolution_backward, 0, true},
    {"aten::_scaled_dot_product_flash_attention", attention_flops},
    {"aten::_scaled_dot_product_efficient_attention", attention_flops},
    {"aten::_scaled_dot_product_cudnn_attention", attention_flops},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention_flops},
    {"aten::_scaled_dot_product_flash_attention_backward", attention_backward_flops},
    {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward_flops},
    {"aten::_scaled_dot_product_cudnn_attention_backward", attention_backward_flops},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward_flops},
    {"dtrain::attention_backward", attention_backward_flops},
    {"dtrain::convolution_backward", convolution_backward, 0, true},
    {"aten::mkldnn_rnn_layer", recurrent_layer},
    {"aten::mkldnn_rnn_layer_backward", recurrent_layer_backward},
};

}  // namespace

const FlopFormula* flop_formula(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFormulas), std::end(kFormulas),
                                         [&](const FlopFormula& formula) { return formula.name == name; });
  return found == std::end(kFormulas) ? nullptr : found;
}

}  // namespace dtrain::train
