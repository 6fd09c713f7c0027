#include "device/pinned_memory.h"

#include <memory>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>

namespace dtrain::train {

data::BatchAllocator pinned_allocator() {
  return [allocator = at::getHostAllocator(at::kCUDA)](std::size_t bytes) {
    auto held = std::make_shared<at::DataPtr>(allocator->allocate(bytes));
    return std::shared_ptr<std::byte>(held, static_cast<std::byte*>(held->get()));
  };
}

}  // namespace dtrain::train
