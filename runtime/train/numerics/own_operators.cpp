#include "numerics/own_operators.h"

#include <torch/library.h>

namespace dtrain::train {

void use_own_operators() {
  struct Libraries {
    torch::Library own{torch::Library::DEF, "dtrain", std::nullopt, __FILE__, __LINE__};
    torch::Library aten{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__};
    torch::Library aten_on_gpus{torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__};
  };
  // The libraries are never destroyed, for libtorch would remove their kernels. LeakSanitizer finds them through this
  // pointer, which the compiler must keep.
  [[gnu::used]] static const Libraries* const added = [] {
    auto* const made = new Libraries;
    add_cross_entropy(made->own, made->aten, made->aten_on_gpus);
    add_gelu(made->own, made->aten);
    add_attention(made->own, made->aten);
    add_convolution(made->own, made->aten);
    add_norms(made->own, made->aten_on_gpus);
    add_uniform(made->aten);
    return made;
  }();
  static_cast<void>(added);
}

}  // namespace dtrain::train
