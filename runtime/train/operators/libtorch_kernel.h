// libtorch's kernel of an operator that dtrain replaces. It gets the calls that dtrain's kernel does not compute.
#pragma once

#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtrain::train {

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
