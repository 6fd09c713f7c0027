#include "precision/narrow_use.h"

#include <memory>
#include <string_view>
#include <unordered_set>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtrain::train {

namespace {

thread_local NarrowUse* watching = nullptr;

// Operators to which autocast gives all of their floating-point tensors in the narrower type, on CPUs and on GPUs.
bool casts_all(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames{"aten::conv1d",
                                                           "aten::conv2d",
                                                           "aten::conv3d",
                                                           "aten::conv_transpose1d",
                                                           "aten::conv_transpose2d.input",
                                                           "aten::conv_transpose2d",
                                                           "aten::conv_transpose3d.input",
                                                           "aten::conv_transpose3d",
                                                           "aten::linear",
                                                           "aten::matmul",
                                                           "aten::mm",
                                                           "aten::bmm",
                                                           "aten::addmm",
                                                           "aten::baddbmm"};
  return kNames.contains(name);
}

// An operator that another one's autocast kernel calls gets what that has cast.
bool inside_autocast_kernel() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU) ||
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCUDA);
}

}  // namespace

NarrowUse::NarrowUse(const FlatParameters& parameters) : uses_(parameters.parameters().size()) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    index_.emplace(all[i].tensor.unsafeGetTensorImpl(), i);
    for (const auto* others : {&all[i].tied, &all[i].aliases}) {
      for (const at::Tensor& other : *others) index_.emplace(other.unsafeGetTensorImpl(), i);
    }
  }
}

void NarrowUse::add(const at::Tensor& input, std::uint8_t use) {
  if (!input.defined()) return;
  const auto found = index_.find(input.unsafeGetTensorImpl());
  if (found != index_.end()) uses_[found->second] |= use;
}

std::unique_ptr<at::ObserverContext> NarrowUse::see(const at::RecordFunction& function) {
  if (watching == nullptr || inside_autocast_kernel()) return nullptr;
  const std::uint8_t use = casts_all(function.name()) ? kNarrow : kOther;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor()) {
      watching->add(input.toTensor(), use);
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) watching->add(tensor, kOther);
    }
  }
  return nullptr;
}

NarrowUse::Watching::Watching(NarrowUse& use) {
  watching = &use;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&NarrowUse::see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

NarrowUse::Watching::~Watching() {
  at::removeCallback(handle_);
  watching = nullptr;
}

}  // namespace dtrain::train
