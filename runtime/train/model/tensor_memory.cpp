#include "model/tensor_memory.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <string>

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kLeastStep = 64 << 10;

TensorMemory* installed = nullptr;

// Returns a block's size: eight steps between two powers of two, so at most an eighth of a block is unused.
std::size_t block_size(std::size_t bytes) {
  const std::size_t step = std::max(kLeastStep, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

constexpr std::int64_t kCacheLine = 64;                // bytes: a cache line, and good for the widest vector loads
constexpr std::int64_t kMostRanksWithEqualParts = 64;  // with more ranks, padding would cost more than it saves

std::size_t flat_bytes(std::int64_t elements, at::ScalarType type) {
  return static_cast<std::size_t>(elements) * c10::elementSize(type);
}

}  // namespace

void* map_block(std::size_t wanted) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t bytes = (wanted + page - 1) / page * page;  // munmap() below needs whole pages
  const std::size_t spare = bytes >= kHugePage ? kHugePage : 0;
  void* const mapped = ::mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (spare == 0) return mapped;
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(start, before);
  if (before < spare) ::munmap(start + before + bytes, spare - before);
  ::madvise(start + before, bytes, MADV_HUGEPAGE);
  return start + before;
}

TensorMemory& TensorMemory::install() {
  static TensorMemory& memory = [&]() -> TensorMemory& {
    installed = new TensorMemory(*c10::GetCPUAllocator());
    // A child of fork() may allocate, too, so no other thread may hold the lock at a fork.
    ::pthread_atfork([] { installed->mutex_.lock(); }, [] { installed->mutex_.unlock(); },
                     [] { installed->mutex_.unlock(); });
    c10::SetCPUAllocator(installed, 1);  // libtorch's own has priority 0
    return *installed;
  }();
  return memory;
}

c10::DataPtr TensorMemory::allocate(std::size_t bytes) {
  if (bytes < kLarge) return small_.allocate(bytes);
  const std::lock_guard lock(mutex_);
  const Block block = take(block_size(bytes));
  used_.emplace(block.data, block);
  use_.in_use += block.bytes;
  use_.peak_in_use = std::max(use_.peak_in_use, use_.in_use);
  return {block.data, block.data, &give_back, c10::Device(c10::DeviceType::CPU)};
}

// Takes the smallest block that fits, unless it wastes more than an eighth. Of several such blocks it takes the one
// that was freed last, which is likeliest in the cache.
TensorMemory::Block TensorMemory::take(std::size_t bytes) {
  if (const auto found = free_.lower_bound(bytes); found != free_.end() && found->first - bytes <= bytes / 8) {
    const Kept::iterator place = found->second.back();
    const Block block = *place;
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    kept_.erase(place);
    return block;
  }
  const std::size_t most_in_use = std::max(use_.peak_in_use, use_.in_use + bytes);
  while (!kept_.empty() && use_.mapped + bytes > most_in_use + most_in_use / 8 + kSlack) unmap_oldest();
  void* data = map_block(bytes);
  while (data == nullptr && !kept_.empty()) {
    unmap_oldest();
    data = map_block(bytes);
  }
  TORCH_CHECK(data != nullptr, "not enough memory: a tensor needs ", bytes, " bytes, and tensors have ", use_.in_use);
  use_.mapped += bytes;
  use_.peak_mapped = std::max(use_.peak_mapped, use_.mapped);
  return {data, bytes, mappings_++};
}

TensorMemory::Kept::iterator TensorMemory::unmap(Kept::iterator place) {
  const auto same_size = free_.find(place->bytes);
  std::erase(same_size->second, place);
  if (same_size->second.empty()) free_.erase(same_size);
  ::munmap(place->data, place->bytes);
  use_.mapped -= place->bytes;
  return kept_.erase(place);
}

void TensorMemory::keep(const Block& block) {
  free_[block.bytes].push_back(kept_.insert(kept_.end(), block));
  use_.in_use -= block.bytes;
}

void TensorMemory::give_back(void* data) {
  {
    const std::lock_guard lock(installed->mutex_);
    if (const auto found = installed->used_.find(data); found != installed->used_.end()) {
      const Block block = found->second;
      installed->used_.erase(found);
      installed->keep(block);
      return;
    }
  }
  installed->small_.raw_deleter()(data);
}

TensorMemory::Interlude::Interlude() {
  if (installed == nullptr) return;
  const std::lock_guard lock(installed->mutex_);
  first_ = installed->mappings_;
}

TensorMemory::Interlude::~Interlude() {
  if (installed == nullptr) return;
  const std::lock_guard lock(installed->mutex_);
  for (auto place = installed->kept_.begin(); place != installed->kept_.end();) {
    place = place->number >= first_ ? installed->unmap(place) : std::next(place);
  }
}

TensorMemory::Use TensorMemory::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

comm::DataType comm_type(at::ScalarType type) {
  if (type == at::kFloat) return comm::DataType::kFloat32;
  if (type == at::kDouble) return comm::DataType::kFloat64;
  if (type == at::kBFloat16) return comm::DataType::kBfloat16;
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
