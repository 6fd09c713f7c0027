// Device memory as the allocator of a device tells it. The device is libtorch's own slot for devices of others.
#include "device/device_profile.h"

#include <gtest/gtest.h>

#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::train {
namespace {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

class FakeAllocator final : public c10::DeviceAllocator {
 public:
  void use(c10::DeviceIndex device, std::int64_t bytes) {
    auto& stat = stats_.at(static_cast<std::size_t>(device)).allocated_bytes[0];
    bytes > 0 ? stat.increase(static_cast<std::size_t>(bytes)) : stat.decrease(static_cast<std::size_t>(-bytes));
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { ++emptied; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    auto stats = stats_.at(static_cast<std::size_t>(device));
    stats.reserved_bytes[0].increase(1 << 20);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    auto& stat = stats_.at(static_cast<std::size_t>(device)).allocated_bytes[0];
    stat.reset_peak();
  }
  c10::DataPtr allocate(std::size_t) override { return {nullptr, c10::Device(kDevice, 0)}; }
  void copy_data(void*, const void*, std::size_t) const override {}

  int emptied = 0;

 private:
  std::array<c10::CachingDeviceAllocator::DeviceStats, 2> stats_{};
};

TEST(DeviceMemory, TheCpuHasNoneOfItsOwn) {
  EXPECT_EQ(device_memory(c10::Device(c10::kCPU)), nullptr);
}

TEST(DeviceMemory, IsWhatTheAllocatorOfTheDeviceCounts) {
  static FakeAllocator allocator;  // libtorch keeps it until the process ends
  c10::SetAllocator(kDevice, &allocator);
  const auto memory = device_memory(c10::Device(kDevice, 1));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->device(), 1);
  allocator.use(0, 77);  // another device
  allocator.use(1, 1'000);
  allocator.use(1, -400);
  auto reading = memory->take();
  EXPECT_EQ(reading.allocated, 600);
  EXPECT_EQ(reading.reserved, 1 << 20);
  EXPECT_EQ(reading.peak, 1'000);
  reading = memory->take();
  EXPECT_EQ(reading.peak, 600) << "since the call before";
  release_unused_memory(c10::Device(kDevice, 1));
  release_unused_memory(c10::Device(c10::kCPU));
  EXPECT_EQ(allocator.emptied, 1);
}

}  // namespace
}  // namespace dtrain::train
