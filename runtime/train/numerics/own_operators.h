// optimizations.operators: operators of libtorch that dtrain computes itself, in fewer passes over memory: all of them
// but norms on CPUs, cross entropy and norms on GPUs that have dtrain's kernels (device/device_kernels.h). Results are
// libtorch's up to rounding. They replace the operator for all callers.
//
//   cross_entropy_loss   of float32 scores [rows, classes], under autocast also bfloat16, and classes as targets, with
//                        no class weights (cross_entropy.cpp). libtorch takes several passes, keeps a copy of the
//                        scores in float32 and zeros a gradient of their size.
//   gelu                 with approximate='tanh', of float32 and bfloat16 (gelu.cpp)
//   scaled_dot_product_attention   its gradient in bfloat16, over at most 512 tokens (attention.cpp)
//   convolution          of float32 and bfloat16 images under a weight of a million values or more with channels last,
//                        whose results have at most 128 pixels, all samples together, and at most four for each
//                        channel, as a product of matrices (convolution.cpp)
//   native_layer_norm, rms_norm    their gradient on GPUs, in float32 (under autocast, too) and bfloat16, with a weight
//                        of at most 4,096 elements, where libtorch reads its inputs twice (norms.cpp)
//   uniform_             of float32 tensors on CPUs, with libtorch's bits: initial weights, which libtorch draws one by
//                        one (uniform.cpp)
//
// Other inputs, gradients of gradients, and forward-mode differentiation are computed by libtorch.
//
// The kernels are operators themselves (dtrain::cross_entropy, dtrain::gelu and their backward,
// dtrain::attention_backward, dtrain::convolution_backward, dtrain::norm_backward), which traces and counts of
// operators show under these names.
#pragma once

#include <utility>

#include <ATen/FuncTorchTLS.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/functorch/DynamicLayer.h>

namespace torch {
class Library;
namespace autograd {
struct Node;
}
}  // namespace torch

namespace dtrain::train {

// Replaces operators for the rest of the process; later calls do nothing. Main thread, before any use of the operators.
void use_own_operators();

// Parts of use_own_operators(): each adds dtrain's operators to `own`, and their replacements in libtorch to `aten`,
// and for tensors on GPUs to `aten_on_gpus`.
void add_cross_entropy(torch::Library& own, torch::Library& aten, torch::Library& aten_on_gpus);
void add_gelu(torch::Library& own, torch::Library& aten);
void add_attention(torch::Library& own, torch::Library& aten);
void add_convolution(torch::Library& own, torch::Library& aten);
void add_norms(torch::Library& own, torch::Library& aten_on_gpus);
void add_uniform(torch::Library& aten);

// True for the node of dtrain's cross entropy with reduction="sum".
bool is_summed_cross_entropy(const torch::autograd::Node* node);
// The same for linear_cross_entropy().
bool is_summed_linear_cross_entropy(const torch::autograd::Node* node);

// True if dtrain's kernels may take the tensor: its elements can be read, unlike those of tracers of torch.compile and
// torch.func, and it has no tangent of forward-mode differentiation, which the kernels do not compute.
inline bool is_plain(const at::Tensor& tensor) {
  // The state of torch.func stays in a thread; layers exist only within its functions.
  const bool in_function =
      at::functorch::functorchTLSAccessor() != nullptr && at::functorch::maybeCurrentDynamicLayer().has_value();
  return !in_function && !at::isTensorSubclassLike(tensor) && !tensor._fw_grad(/*level=*/0).defined();
}

// Calls one of dtrain's operators, below autograd and below autocast, under which backward may run. The signatures of
// the operators differ, because the call finds an operator by its signature.
template <class Signature, class... Arguments>
auto call_operator(const char* name, const Arguments&... arguments) {
  static const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  TORCH_INTERNAL_ASSERT(found.operator_name().name == name, "two operators of one signature: ", name);
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return found.call(arguments...);
}

}  // namespace dtrain::train

namespace dtrain::train {

// libtorch's kernel of an operator that dtrain replaces. It gets the calls that dtrain's kernel does not compute.

// The constructor finds the kernel, before dtrain's is registered. Calls: any thread.
class LibtorchKernel {
 public:
  explicit LibtorchKernel(const char* name)
      : kernel_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").getComputedKernelForDispatchKey(
            c10::DispatchKey::AutogradCPU)) {}

  // Returns the results. `keys`: those of the call of dtrain's kernel.
  template <class... Arguments>
  torch::jit::Stack call(c10::DispatchKeySet keys, Arguments&&... arguments) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    kernel_.callBoxed(kernel_.opHandle(), keys, &stack);
    return stack;
  }

 private:
  c10::SafeKernelFunction kernel_;
};

}  // namespace dtrain::train
