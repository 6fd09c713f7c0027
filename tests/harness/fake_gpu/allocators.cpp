#include "allocators.h"

#include <cstring>
#include <mutex>
#include <set>

#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

void free_on_device(void* data) {
  const std::scoped_lock lock(machine().mutex);
  machine().memory.free(data);
}

void free_pinned(void* data) {
  const std::scoped_lock lock(machine().mutex);
  machine().pinned.free(data);
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::scoped_lock lock(machine().mutex);
    void* const data = machine().memory.allocate(bytes);
    return {data, data, &free_on_device, c10::Device(c10::kCUDA, current_device())};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_on_device; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(machine().memory.alias(to), machine().memory.alias(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    const std::scoped_lock lock(machine().mutex);
    for (int d = 0; d < machine().devices; ++d) machine().memory.release_cached(static_cast<c10::DeviceIndex>(d));
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::scoped_lock lock(machine().mutex);
    machine().memory.record_stream(data.get(), machine().streams.of(stream).index);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::scoped_lock lock(machine().mutex);
    return machine().memory.stats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::scoped_lock lock(machine().mutex);
    return machine().memory.info(device);
  }

 private:
  template <typename F>
  static void for_each_stat(c10::DeviceIndex device, F change) {
    const std::scoped_lock lock(machine().mutex);
    auto& stats = machine().memory.stats(device);
    for (auto* const stat : {&stats.allocation, &stats.segment, &stats.allocated_bytes, &stats.reserved_bytes,
                             &stats.active_bytes, &stats.requested_bytes}) {
      change((*stat)[0]);
    }
  }
};

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::scoped_lock lock(machine().mutex);
    void* const data = machine().pinned.allocate(bytes);
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)>) override {
    const std::scoped_lock lock(machine().mutex);
    open_pools_.insert(pool);
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    const std::scoped_lock lock(machine().mutex);
    TORCH_CHECK(open_pools_.erase(pool) == 1, "endAllocatePool: not currently recording to mempool_id");
  }
  void release_pool(c10::MempoolId_t) override {}

 private:
  std::set<c10::MempoolId_t> open_pools_;  // of captures; its memory is that of all
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* const allocator = new DeviceMemory;
  return allocator;
}

at::HostAllocator* pinned_allocator() {
  static auto* const allocator = new PinnedMemory;
  return allocator;
}

}  // namespace dtrain::test::fake_gpu
