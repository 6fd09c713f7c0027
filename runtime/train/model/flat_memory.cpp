#include "model/flat_memory.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "model/tensor_memory.h"

namespace dtrain::train {

namespace {

constexpr std::int64_t kCacheLine = 64;                // bytes: a cache line, and good for the widest vector loads
constexpr std::int64_t kMostRanksWithEqualParts = 64;  // with more ranks, padding would cost more than it saves

std::size_t flat_bytes(std::int64_t elements, at::ScalarType type) {
  return static_cast<std::size_t>(elements) * c10::elementSize(type);
}

}  // namespace

comm::DataType comm_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kDouble:
      return comm::DataType::kFloat64;
    case at::kBFloat16:
      return comm::DataType::kBfloat16;
    default:
      break;
  }
  throw Error(std::string("values of type ") + at::toString(type) + " cannot be exchanged");
}

std::int64_t FlatMemory::alignment(bool equal_parts) const {
  if (equal_parts) return kCacheLine * communicator_.world_size();
  if (on_host() || communicator_.world_size() > kMostRanksWithEqualParts) return kCacheLine;
  return kCacheLine * communicator_.world_size();
}

FlatMemory::Block FlatMemory::exchanged(std::int64_t elements, at::ScalarType type) {
  if (!on_host()) {
    // NCCL takes this memory from the device, where libtorch may keep memory that its tensors no longer use.
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device_.type()));
    if (allocator != nullptr) allocator->emptyCache();
  }
  auto buffer = communicator_.allocate(flat_bytes(elements, type));
  at::Tensor tensor = view_of(*buffer, elements, type);
  return {std::move(tensor), std::move(buffer)};
}

std::optional<FlatMemory::Block> FlatMemory::common(std::int64_t elements, at::ScalarType type) {
  auto buffer = communicator_.allocate_common(flat_bytes(elements, type));
  if (!buffer) return std::nullopt;
  at::Tensor tensor = view_of(*buffer, elements, type);
  return Block{std::move(tensor), std::move(buffer)};
}

at::Tensor FlatMemory::own(std::int64_t elements, at::ScalarType type) const {
  const auto options = at::TensorOptions().dtype(type).device(device());
  const std::size_t bytes = flat_bytes(elements, type);
  if (bytes == 0 || !on_host()) return at::zeros({elements}, options);
  void* const data = map_block(bytes);
  if (data == nullptr) throw SystemError("map " + std::to_string(bytes) + " bytes", errno);
  return at::from_blob(
      data, {elements}, [bytes](void* memory) { ::munmap(memory, bytes); }, options);
}

at::Tensor FlatMemory::own_copy(const at::Tensor& flat) const {
  at::Tensor copy = own(flat.numel(), flat.scalar_type());
  return copy.copy_(flat);
}

at::Tensor FlatMemory::view_of(comm::Buffer& buffer, std::int64_t elements, at::ScalarType type) const {
  return at::for_blob(buffer.bytes().data(), {elements})
      .options(at::TensorOptions().dtype(type).device(device_))
      .target_device(device_)
      .make_tensor();
}

std::byte* FlatMemory::address(const at::Tensor& flat, std::int64_t element) {
  return static_cast<std::byte*>(flat.data_ptr()) + element * static_cast<std::int64_t>(flat.element_size());
}

std::int64_t FlatMemory::whole_pages(const at::Tensor& flat, std::int64_t first, std::int64_t elements) {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const auto begin = reinterpret_cast<std::intptr_t>(address(flat, first));
  const auto end = reinterpret_cast<std::intptr_t>(address(flat, first + elements));
  return std::max<std::int64_t>(0, end / page * page - (begin + page - 1) / page * page);
}

void FlatMemory::clear(const at::Tensor& flat, std::int64_t first, std::int64_t elements) {
  flat.narrow(0, first, elements).zero_();
}

}  // namespace dtrain::train
