#include <array>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/device_kernels.h"
#include "device/kernels/layer_norm.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr const char* kGradientOfNorm = "dtrain::norm_backward";

const LibtorchKernel* libtorchs_layer_norm = nullptr;
const LibtorchKernel* libtorchs_rms_norm = nullptr;

bool is_taken(const at::Tensor& tensor, const at::Tensor& like, at::ScalarType type) {
  return tensor.defined() && is_plain(tensor) && tensor.device() == like.device() && tensor.scalar_type() == type &&
         tensor.layout() == at::kStrided && tensor.is_contiguous();
}

// Autocast casts the inputs of norms on GPUs to float32. In a model of bfloat16 they are bfloat16, and mean and
// reciprocal float32. With create_graph the gradient must be differentiable.
bool is_known_norm(const at::Tensor& of_result, const at::Tensor& x, const at::Tensor* mean,
                   const at::Tensor& reciprocal, const Optional& weight) {
  const at::ScalarType type = x.scalar_type();
  return !at::GradMode::is_enabled() && x.is_cuda() && (type == at::kFloat || type == at::kBFloat16) &&
         is_taken(x, x, type) && x.numel() > 0 && weight && is_taken(*weight, x, type) &&
         weight->numel() <= cuda::kMostColumnsOfNorm && is_taken(of_result, x, type) &&
         of_result.sizes() == x.sizes() && is_taken(reciprocal, x, at::kFloat) &&
         reciprocal.numel() == x.numel() / weight->numel() &&
         (mean == nullptr || (is_taken(*mean, x, at::kFloat) && mean->numel() == reciprocal.numel())) &&
         why_no_device_kernels().empty();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradient_of_norm(const at::Tensor& of_result, const at::Tensor& x,
                                                                const Optional& mean, const at::Tensor& reciprocal,
                                                                const at::Tensor& weight, bool bias) {
  return call_operator<decltype(norm_gradient_on_device)>(kGradientOfNorm, of_result, x, mean, reciprocal, weight,
                                                          bias);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(c10::DispatchKeySet keys,
                                                                   const at::Tensor& of_result, const at::Tensor& x,
                                                                   c10::SymIntArrayRef shape, const at::Tensor& mean,
                                                                   const at::Tensor& reciprocal, const Optional& weight,
                                                                   const Optional& bias, std::array<bool, 3> wanted) {
  if (wanted[0] && wanted[1] && is_known_norm(of_result, x, &mean, reciprocal, weight)) {
    return gradient_of_norm(of_result, x, mean, reciprocal, *weight, wanted[2]);
  }
  const auto results = libtorchs_layer_norm->call(keys, of_result, x, shape, mean, reciprocal, weight, bias, wanted);
  return {results[0].toTensor(), results[1].toTensor(), results[2].toTensor()};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(c10::DispatchKeySet keys, const at::Tensor& of_result,
                                                     const at::Tensor& x, c10::IntArrayRef shape,
                                                     const at::Tensor& reciprocal, const Optional& weight,
                                                     std::array<bool, 2> wanted) {
  if (wanted[0] && wanted[1] && is_known_norm(of_result, x, nullptr, reciprocal, weight)) {
    const auto [of_x, of_weight, none] = gradient_of_norm(of_result, x, {}, reciprocal, *weight, false);
    return {of_x, of_weight};
  }
  const auto results = libtorchs_rms_norm->call(keys, of_result, x, shape, reciprocal, weight, wanted);
  return {results[0].toTensor(), results[1].toTensor()};
}

}  // namespace

void add_norms(torch::Library& own, torch::Library& aten_on_gpus) {
  libtorchs_layer_norm = new LibtorchKernel("aten::native_layer_norm_backward");  // never freed, as the next
  libtorchs_rms_norm = new LibtorchKernel("aten::_fused_rms_norm_backward");
  own.def(
      "norm_backward(Tensor of_result, Tensor x, Tensor? mean, Tensor reciprocal, Tensor weight, bool bias) -> "
      "(Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(norm_gradient_on_device)));
  aten_on_gpus.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  aten_on_gpus.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}

}  // namespace dtrain::train
