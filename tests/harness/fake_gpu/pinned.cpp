#include "pinned.h"

#include <cstdlib>
#include <new>

namespace dtrain::test::fake_gpu {

void* Pinned::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  void* const data = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  blocks_[reinterpret_cast<std::uintptr_t>(data)] = {bytes, ++allocations_};
  return data;
}

void Pinned::free(void* data) {
  blocks_.erase(reinterpret_cast<std::uintptr_t>(data));
  std::free(data);
}

std::uint64_t Pinned::serial(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return 0;
  --block;
  return address <= block->first + block->second.bytes ? block->second.serial : 0;
}

}  // namespace dtrain::test::fake_gpu
