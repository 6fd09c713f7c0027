// What does libtorch's CPU library ask its CUDA library?
#include <mutex>

#include <ATen/detail/CUDAHooksInterface.h>

#include "allocators.h"
#include "generator.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return machine().devices > 0; }
  bool hasCUDA() const override { return machine().devices > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return machine().devices; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(machine().devices); }
  c10::DeviceIndex current_device() const override { return fake_gpu::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return fake_gpu::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = fake_gpu::current_device();
    if (device >= 0) set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? fake_gpu::current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? fake_gpu::current_device() : device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(machine().memory.is_device(data), "The specified pointer resides on host memory and is not registered");
    return {at::kCUDA, machine().memory.device_of(data)};
  }
  bool isPinnedPtr(const void* data) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().pinned.serial(data) != 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  std::string showConfig() const override { return "fake GPUs"; }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    const std::scoped_lock lock(machine().mutex);
    machine().streams.wait_for_device(device);
  }
};

}  // namespace dtrain::test::fake_gpu

namespace at {
using FakeHooks = dtrain::test::fake_gpu::Hooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)
}  // namespace at
