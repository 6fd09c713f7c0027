#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/string_view.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "numerics/kernels.h"
#include "numerics/own_operators.h"
#include "numerics/parallel.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kLeastElements = 1 << 15;  // elements for which a thread pays off

// Calls work(begin, count, value of the type of `like`) for ranges of elements, on the rank's threads.
template <class Work>
void for_elements(const at::Tensor& like, const Work& work) {
  parallel_for(like.numel(), kLeastElements, [&](std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    if (like.scalar_type() == at::kFloat) {
      work(begin, count, float());
    } else {
      work(begin, count, kernels::Bfloat16());
    }
  });
}

template <class Value>
const Value* from(const at::Tensor& tensor, std::int64_t begin) {
  return static_cast<const Value*>(tensor.const_data_ptr()) + begin;
}
template <class Value>
Value* into(const at::Tensor& tensor, std::int64_t begin) {
  return static_cast<Value*>(tensor.mutable_data_ptr()) + begin;
}

bool is_known(const at::Tensor& x) {
  return (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.layout() == at::kStrided &&
         x.is_non_overlapping_and_dense() && is_plain(x);
}

at::Tensor gelu_of(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  for_elements(x, [&]<class Value>(std::int64_t begin, std::size_t count, Value) {
    kernels::gelu(from<Value>(x, begin), count, into<Value>(y, begin));
  });
  return y;
}

// `of_result` has the type and the strides of `x`.
at::Tensor gradient_of_gelu(const at::Tensor& of_result, const at::Tensor& x) {
  at::Tensor gradient = at::empty_like(x);
  for_elements(x, [&]<class Value>(std::int64_t begin, std::size_t count, Value) {
    kernels::gelu_gradient(from<Value>(x, begin), from<Value>(of_result, begin), count, into<Value>(gradient, begin));
  });
  return gradient;
}

constexpr const char* kGelu = "dtrain::gelu";
constexpr const char* kGradientOfGelu = "dtrain::gelu_backward";

class Gelu : public torch::autograd::Function<Gelu> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return call_operator<decltype(gelu_of)>(kGelu, x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor& of_result = gradients[0];
    const bool alike = of_result.defined() && of_result.scalar_type() == x.scalar_type() &&
                       of_result.layout() == at::kStrided && of_result.sizes() == x.sizes();
    // With create_graph the gradient must be differentiable.
    if (at::GradMode::is_enabled() || !alike || !is_plain(of_result)) return {at::gelu_backward(of_result, x, "tanh")};
    const at::Tensor given = of_result.strides() == x.strides() ? of_result : at::empty_like(x).copy_(of_result);
    return {call_operator<decltype(gradient_of_gelu)>(kGradientOfGelu, given, x)};
  }
};

const LibtorchKernel* libtorchs_gelu = nullptr;

at::Tensor gelu(c10::DispatchKeySet keys, const at::Tensor& x, std::string_view approximate) {
  if (approximate == "tanh" && is_known(x)) return Gelu::apply(x);
  return libtorchs_gelu->call(keys, x, std::string(approximate)).back().toTensor();
}

}  // namespace

void add_gelu(torch::Library& own, torch::Library& aten) {
  libtorchs_gelu = new LibtorchKernel("aten::gelu");  // never freed
  own.def("gelu(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(gelu_of)));
  own.def("gelu_backward(Tensor of_result, Tensor x) -> Tensor",
          torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(gradient_of_gelu)));
  aten.impl("gelu", TORCH_FN(gelu));
}

}  // namespace dtrain::train
