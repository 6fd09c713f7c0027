#include "dtrain/train/add_norm.h"

#include <limits>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>

#include "device/device_kernels.h"
#include "device/kernels/layer_norm.h"
#include "dtrain/base/error.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

struct NormSettings {
  bool rms = false;
  double eps = 0;
};

struct NormGradients {
  at::Tensor of_sum, of_weight, of_bias;
};

// The gradients of the norm in operators that have gradients themselves, for create_graph.
NormGradients differentiable_gradients(const at::Tensor& of_normalized, const at::Tensor& sum, const at::Tensor& weight,
                                       const NormSettings& settings) {
  const auto mean_of = [](const at::Tensor& rows) { return rows.mean(-1, /*keepdim=*/true); };
  const at::Tensor given = of_normalized.to(sum.scalar_type());
  const at::Tensor centred = settings.rms ? sum : sum - mean_of(sum);
  const at::Tensor reciprocal = (mean_of(centred.square()) + settings.eps).rsqrt();
  const at::Tensor normalized = centred * reciprocal, weighted = given * weight;
  at::Tensor of_sum = weighted - normalized * mean_of(weighted * normalized);
  if (!settings.rms) of_sum = of_sum - mean_of(weighted);
  const auto of_column = [&](const at::Tensor& rows) { return rows.reshape({-1, weight.numel()}).sum(0); };
  return {of_sum * reciprocal, of_column(given * normalized), of_column(given)};
}

class AddNorm : public torch::autograd::Function<AddNorm> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                                                const at::Tensor& residual, const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias, const NormSettings& settings) {
    ResidualNorm norm =
        residual_norm_on_device(residual, input, weight, bias.value_or(at::Tensor()), settings.eps, settings.rms);
    context->set_materialize_grads(false);
    context->save_for_backward({norm.sum, norm.mean, norm.reciprocal, weight});
    context->saved_data["rms"] = settings.rms;
    context->saved_data["eps"] = settings.eps;
    context->saved_data["has_bias"] = bias.has_value();
    return {std::move(norm.normalized), std::move(norm.sum)};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &of_normalized = gradients[0], &of_sum = gradients[1];
    const at::Tensor &sum = saved[0], &mean = saved[1], &reciprocal = saved[2], &weight = saved[3];
    const bool has_bias = context->saved_data["has_bias"].toBool();
    if (!of_normalized.defined()) return {of_sum, of_sum, {}, {}, {}};
    if (at::GradMode::is_enabled() || !is_plain(of_normalized) || (of_sum.defined() && !is_plain(of_sum))) {
      const NormGradients found = differentiable_gradients(
          of_normalized, sum, weight, {context->saved_data["rms"].toBool(), context->saved_data["eps"].toDouble()});
      const at::Tensor of_both = of_sum.defined() ? found.of_sum + of_sum : found.of_sum;
      return {of_both.to(of_normalized.scalar_type()),
              of_both,
              found.of_weight,
              has_bias ? found.of_bias : at::Tensor(),
              {}};
    }
    const c10::DeviceGuard on_device(sum.device());
    const ResidualNormGradients found =
        residual_norm_gradient_on_device(of_normalized.contiguous(), of_sum.defined() ? of_sum.contiguous() : of_sum,
                                         {sum, {}, mean, reciprocal}, weight, has_bias);
    return {found.of_input, found.of_residual, found.of_weight, found.of_bias, {}};
  }
};

// True if the kernels may take the tensors; `type` is autocast's, if it is on.
bool has_kernel(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                std::optional<at::ScalarType> autocast) {
  const auto is_taken = [&](const at::Tensor& tensor, at::ScalarType type) {
    return is_plain(tensor) && tensor.layout() == at::kStrided && tensor.device() == residual.device() &&
           tensor.scalar_type() == type;
  };
  const at::ScalarType wide = residual.scalar_type(), narrow = input.scalar_type();
  const bool mixed = autocast == at::kBFloat16 && wide == at::kFloat && narrow == at::kBFloat16;
  return residual.is_cuda() && (wide == at::kFloat || wide == at::kBFloat16) && (narrow == wide || mixed) &&
         residual.numel() > 0 && weight.numel() <= cuda::kMostColumnsOfNorm && is_taken(residual, wide) &&
         is_taken(input, narrow) && is_taken(weight, wide) && (!bias.defined() || is_taken(bias, wide)) &&
         why_no_device_kernels().empty();
}

void check_shapes(const char* function, const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                  const at::Tensor& bias) {
  const auto shape_of = [](const at::Tensor& tensor) { return tensor.defined() ? c10::str(tensor.sizes()) : "none"; };
  if (input.dim() < 1 || input.sizes() != residual.sizes()) {
    throw Error(std::string(function) + ": the input has the shape " + shape_of(input) + ", and the residual " +
                    shape_of(residual),
                "give both the same shape, [..., columns]");
  }
  const auto fits = [&](const at::Tensor& parameter) {
    return parameter.defined() && parameter.dim() == 1 && parameter.size(0) == input.size(-1);
  };
  if (!fits(weight) || (bias.defined() && !fits(bias))) {
    throw Error(std::string(function) + ": the input has the shape " + shape_of(input) + ", the weight " +
                    shape_of(weight) + ", and the bias " + shape_of(bias),
                "give a weight and a bias of one dimension, as long as the input's last one");
  }
}

AddNormResult add_norm(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                       const at::Tensor& bias, const NormSettings& settings) {
  std::optional<at::ScalarType> autocast;
  if (at::autocast::is_autocast_enabled(input.device().type())) {
    autocast = at::autocast::get_autocast_dtype(input.device().type());
  }
  AddNormResult result;
  if (has_kernel(input, residual, weight, bias, autocast)) {
    const c10::DeviceGuard on_device(residual.device());
    const auto both = AddNorm::apply(input.contiguous(), residual.contiguous(), weight.contiguous(),
                                     bias.defined() ? std::optional(bias.contiguous()) : std::nullopt, settings);
    result = {both[0], both[1]};
  } else {
    result.sum = residual + input;
    const at::IntArrayRef columns = weight.sizes();
    result.normalized = settings.rms ? at::rms_norm(result.sum, columns, weight, settings.eps)
                                     : at::layer_norm(result.sum, columns, weight, bias, settings.eps);
  }
  if (autocast && result.sum.scalar_type() != at::kDouble) result.normalized = result.normalized.to(*autocast);
  return result;
}

}  // namespace
}  // namespace dtrain::train

namespace dtrain {

AddNormResult add_layer_norm(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                             const at::Tensor& bias, double eps) {
  train::check_shapes("add_layer_norm", input, residual, weight, bias);
  return train::add_norm(input, residual, weight, bias, {.rms = false, .eps = eps});
}

AddNormResult add_rms_norm(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                           std::optional<double> eps) {
  train::check_shapes("add_rms_norm", input, residual, weight, {});
  const bool wide = input.scalar_type() == at::kDouble || residual.scalar_type() == at::kDouble;
  const double smallest = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return train::add_norm(input, residual, weight, {}, {.rms = true, .eps = eps.value_or(smallest)});
}

}  // namespace dtrain
