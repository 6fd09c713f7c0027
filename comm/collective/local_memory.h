// Heap memory that is aligned for every backend and zeroed.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace dtrain::comm {

inline std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t size = (bytes + kPage) / kPage * kPage;
  void* const memory = std::aligned_alloc(kPage, size);
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, size);
  return {static_cast<std::byte*>(memory), [](std::byte* data) { std::free(data); }};
}

}  // namespace dtrain::comm
