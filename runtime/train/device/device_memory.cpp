#include "device/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::train {
namespace {

class CachingAllocatorMemory final : public profile::DeviceMemory {
 public:
  CachingAllocatorMemory(c10::DeviceAllocator& allocator, c10::DeviceIndex index)
      : allocator_(allocator), index_(index) {}

  Reading take() override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator_.getDeviceStats(index_);
    allocator_.resetPeakStats(index_);  // called once per phase, so that the next peak is of the next phase
    return {stats.allocated_bytes[kAll].current, stats.reserved_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
  }
  int device() const override { return index_; }

 private:
  c10::DeviceAllocator& allocator_;
  c10::DeviceIndex index_;
};

// Returns nullptr if memory is not cached, or was never allocated.
c10::DeviceAllocator* caching_allocator(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

std::unique_ptr<profile::DeviceMemory> device_memory(const c10::Device& device) {
  auto* const allocator = caching_allocator(device);
  if (allocator == nullptr) return nullptr;
  return std::make_unique<CachingAllocatorMemory>(*allocator,
                                                  device.has_index() ? device.index() : c10::DeviceIndex{0});
}

void release_unused_memory(const c10::Device& device) {
  if (auto* const allocator = caching_allocator(device)) allocator->emptyCache();
}

}  // namespace dtrain::train
