// What goes wrong on devices: no memory, a lost device, events that take their time, a host that reads device memory.
#include <csignal>

#include "gpus.h"

namespace dtrain::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using Faults = OnGpus;
using FaultsDeathTest = OnGpus;

TEST_F(FaultsDeathTest, TheHostCannotReadDeviceMemory) {
  const auto x = at::ones({4}, kGpu);
  EXPECT_EXIT(
      [[maybe_unused]] const volatile float f = *x.const_data_ptr<float>(), testing::KilledBySignal(SIGSEGV),
      "the host touches memory of a device: cuda:0, memory of 16 bytes that empty allocated; last written by fill_");
}

TEST_F(FaultsDeathTest, TheHostCannotWriteDeviceMemory) {
  const auto x = at::ones({4}, kGpu);
  EXPECT_EXIT(x.mutable_data_ptr<float>()[1] = 1, testing::KilledBySignal(SIGSEGV),
              "the host touches memory of a device");
}

TEST_F(FaultsDeathTest, OtherFaultsAreAsBefore) {
  EXPECT_EXIT(::raise(SIGSEGV), testing::KilledBySignal(SIGSEGV), testing::Not(HasSubstr("fake GPU")));
}

TEST_F(Faults, TheNthAllocationFails) {
  gpus.fail_allocation(2);
  const auto x = at::empty({1000}, kGpu);
  try {
    at::empty({2000}, kGpu);
    ADD_FAILURE() << "no error";
  } catch (const c10::OutOfMemoryError& e) {
    EXPECT_THAT(
        e.what(),
        HasSubstr("CUDA out of memory. Tried to allocate 7.81 KiB. GPU 0 has a total capacity of 4.00 GiB of which "));
    EXPECT_THAT(e.what(), testing::ContainsRegex("of which [0-9.]+ GiB is free"));
  }
  at::empty({2000}, kGpu);
}

TEST_F(Faults, MemoryEnds) {
  auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
  const auto before = allocator->getDeviceStats(0).num_ooms;
  const auto half = static_cast<std::int64_t>(allocator->getMemoryInfo(0).second / 2);
  const auto bytes = at::TensorOptions(kGpu).dtype(at::kByte);
  // Not allocated here: that would fill gigabytes.
  EXPECT_THROW(at::empty({3 * half}, bytes), c10::OutOfMemoryError);
  EXPECT_EQ(allocator->getDeviceStats(0).num_ooms, before + 1);
}

TEST_F(Faults, StatisticsFollowAllocations) {
  auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
  allocator->emptyCache();
  allocator->resetPeakStats(0);
  const auto before = allocator->getDeviceStats(0);
  auto x = at::empty({1000}, kGpu);
  x.reset();
  const auto after = allocator->getDeviceStats(0);
  EXPECT_EQ(after.allocated_bytes[0].current, before.allocated_bytes[0].current);
  EXPECT_EQ(after.allocated_bytes[0].peak, before.allocated_bytes[0].current + 4096);
  EXPECT_EQ(after.reserved_bytes[0].current, before.reserved_bytes[0].current + 4096);
  allocator->emptyCache();
  EXPECT_EQ(allocator->getDeviceStats(0).reserved_bytes[0].current, before.reserved_bytes[0].current);
  EXPECT_EQ(allocator->getDeviceStats(1).allocated_bytes[0].current, 0);
}

TEST_F(Faults, ALostDeviceFailsFromThenOn) {
  auto x = at::ones({4}, kGpu);
  c10::Event event(at::kCUDA);
  event.record(current_stream());
  gpus.lose_device(2);
  x.mul_(2);
  x.mul_(2);
  EXPECT_THROW(x.mul_(2), c10::AcceleratorError);
  EXPECT_THROW(x.sum().item<float>(), c10::AcceleratorError);
  EXPECT_THROW(current_stream().synchronize(), c10::AcceleratorError);
  EXPECT_THROW(event.query(), c10::AcceleratorError);
  EXPECT_THROW(event.record(current_stream()), c10::AcceleratorError);
  x.reset();  // freeing does not fail
  const c10::DeviceGuard on(kOtherGpu);
  EXPECT_EQ(at::ones({4}, kOtherGpu).sum().item<float>(), 4);  // the other device works
}

TEST_F(Faults, EventsAndStreamsAreNotReadyForSomeQueries) {
  gpus.delay_queries(2);
  auto host = at::empty({1}, at::TensorOptions().pinned_memory(true));
  host.copy_(at::ones({1}, kGpu), true);
  c10::Event event(at::kCUDA);
  event.record(current_stream());
  EXPECT_FALSE(event.query());
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(host.isnan().item<bool>());
  EXPECT_TRUE(event.query());
  EXPECT_EQ(host.item<float>(), 1);
  EXPECT_TRUE(current_stream().query());  // nothing was launched after the event
  at::ones({1}, kGpu);
  EXPECT_FALSE(current_stream().query());
  EXPECT_FALSE(current_stream().query());
  EXPECT_TRUE(current_stream().query());
  at::ones({1}, kGpu);
  event.record(current_stream());
  event.synchronize();
  EXPECT_TRUE(event.query());  // the host has waited for it
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Faults, TimesAreThoseOfTheOperationsInTheirOrder) {
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  const auto side = pool_stream();
  auto x = at::ones({4}, kGpu);
  order(current_stream(), side);
  begin.record(current_stream());
  for (int i = 0; i < 3; ++i) x.mul_(2);
  order(current_stream(), side);
  {
    const c10::StreamGuard on(side);
    x.mul_(2);
  }
  order(side, current_stream());
  end.record(current_stream());
  EXPECT_GE(begin.elapsedTime(end), 0.004);  // a microsecond each at least
}

}  // namespace
}  // namespace dtrain::test
