#include "exchange/gradient_guard.h"

#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/impl/COWDeleter.h>

namespace c10::impl::cow {
C10_API void materialize_cow(StorageImpl* storage);  // as libtorch 2.15 has it; older ones copy what has a cow_deleter
}

namespace dtrain::train {
namespace {

// Makes code that asks for memory to write get a copy.
template <class Storage>
void copy_on_write(Storage& storage) {
  if constexpr (requires { storage.set_materializer(&c10::impl::cow::materialize_cow); }) {
    storage.set_materializer(&c10::impl::cow::materialize_cow);
  }
}

}  // namespace

GradientGuard::GradientGuard(const at::Tensor& gradient) {
  namespace cow = c10::impl::cow;
  void* const memory = gradient.data_ptr();
  auto* const context = new cow::COWDeleterContext({memory, [](void*) {}});  // the storage must not free this memory
  at::DataPtr first(memory, context, cow::cow_deleter, gradient.device());
  context->increment_refcount();
  memory_ = at::DataPtr(memory, context, cow::cow_deleter, gradient.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(gradient.nbytes()), std::move(first),
      c10::GetAllocator(gradient.device().type()), /*resizable=*/false);
  copy_on_write(*storage);
  view_ = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(gradient.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA), gradient.dtype());
  view_.unsafeGetTensorImpl()->set_sizes_and_strides(gradient.sizes(), gradient.strides());
}

}  // namespace dtrain::train
