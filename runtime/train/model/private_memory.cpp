#include "model/private_memory.h"

#include <cerrno>

#include <sys/mman.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

at::Tensor flat_zeros(std::int64_t elements, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto bytes = static_cast<std::size_t>(elements) * c10::elementSize(dtype);
  if (bytes == 0) return at::zeros({0}, options);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw SystemError("map " + std::to_string(bytes) + " bytes", errno);
  return at::from_blob(
      data, {elements}, [bytes](void* memory) { ::munmap(memory, bytes); }, options);
}

at::Tensor flat_copy(const at::Tensor& flat) {
  at::Tensor copy = flat_zeros(flat.numel(), flat.scalar_type());
  return copy.copy_(flat);
}

}  // namespace dtrain::train
