// Which memory of the host is pinned?
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace dtrain::test::fake_gpu {

class Pinned {
 public:
  void* allocate(std::size_t bytes);
  void free(void* data);
  // The number of the allocation that the address lies in; 0: memory that is not pinned.
  std::uint64_t serial(const void* data) const;
  // Of the allocation that begins there.
  std::size_t bytes(const void* data) const { return blocks_.at(reinterpret_cast<std::uintptr_t>(data)).bytes; }

 private:
  struct Block {
    std::size_t bytes = 0;
    std::uint64_t serial = 0;
  };

  std::map<std::uintptr_t, Block> blocks_;
  std::uint64_t allocations_ = 0;
};

}  // namespace dtrain::test::fake_gpu
