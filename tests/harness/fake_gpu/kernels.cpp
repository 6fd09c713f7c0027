// Which operators does the device have, and which of them are not CPU kernels?
#include "kernels.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "allocators.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

c10::DispatchKeySet cuda_keys() {
  return c10::DispatchKeySet(c10::DispatchKey::CUDA);
}

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const OnDevice on(index_of(device));
  return at::detail::empty_generic(size, device_allocator(), cuda_keys(), c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const OnDevice on(index_of(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), cuda_keys(), c10::dtype_or_default(type));
}

// A larger storage with the same contents, copied on the current stream.
void grow(const at::Tensor& tensor, std::size_t bytes) {
  const c10::Storage& storage = tensor.storage();
  if (bytes <= storage.nbytes()) return;
  const OnDevice on(tensor.get_device());
  c10::DataPtr larger = device_allocator()->allocate(bytes);
  if (storage.nbytes() > 0) {
    const auto options = tensor.options().dtype(at::kByte);
    const auto size = static_cast<std::int64_t>(storage.nbytes());
    at::Tensor to = at::from_blob(larger.get(), {size}, options);
    copy_(to, at::from_blob(storage.mutable_data(), {size}, options), true);
  }
  storage.set_data_ptr_noswap(std::move(larger));
  storage.set_nbytes(bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    if (self.numel() > 0) grow(self, (self.storage_offset() + self.numel()) * self.element_size());
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_to_storage(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  }
  if (self.numel() > 0) {
    grow(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.element_size(), offset));
  }
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Launch launch(self.get_device(), "item");
  launch.needs_host();
  launch.reads(self);
  launch.begin(&FakeGpuCounts::scalar_reads);
  const std::scoped_lock lock(machine().mutex);
  machine().streams.wait(launch.stream(), "item");
  return at::_local_scalar_dense(on_host(self));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// They change the tensor itself and not its data, so that a CPU kernel would change the wrong tensor; or they ask for
// memory.
bool needs_own_kernel(const c10::OperatorHandle& op, std::string_view name) {
  return op.hasTag(at::Tag::inplace_view) || name == "is_set_to" || name == "set_";
}

// Without a kernel for the device these would run as several operators, or others than on the CPU.
bool is_one_kernel(std::string_view name) {
  return name == "convolution" || name == "convolution_backward" || name.starts_with("_foreach_");
}

}  // namespace

void register_kernels() {
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage", at::native::set_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", set_to_storage);
  library.impl("copy_", copy_);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("record_stream", record_stream);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    const std::string plain = name.name.substr(std::string_view("aten::").size());
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) || needs_own_kernel(*op, plain)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !is_one_kernel(plain)) continue;
    const std::string full = name.overload_name.empty() ? plain : plain + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
  }
}

}  // namespace dtrain::test::fake_gpu
