// The kernel that libtorch has for an operator where dtrain puts one of its own in its place: what ours does not
// compute goes there, as if ours were not there.
#pragma once

#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtrain::train {

// Found when it is made, which is before ours is registered. Calls: any thread.
class LibtorchKernel {
 public:
  explicit LibtorchKernel(const char* name)
      : kernel_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").getComputedKernelForDispatchKey(
            c10::DispatchKey::AutogradCPU)) {}

  // The results. `keys`: those that ours was called with.
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
