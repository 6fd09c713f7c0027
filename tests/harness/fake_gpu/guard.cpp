#include "guard.h"

#include <mutex>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocators.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

Event& of(void* event) {
  return *static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(machine().devices); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Device getDevice() const override { return {c10::kCUDA, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < deviceCount()) set_current_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().streams.current(index_of(device)).handle;
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().streams.from_pool(index_of(device), high_priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().streams.exchange_current(stream);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().streams.native(stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    const std::scoped_lock lock(machine().mutex);
    if (*event == nullptr) *event = new Event{stream.device_index()};
    machine().streams.record(of(*event), machine().streams.of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::scoped_lock lock(machine().mutex);
    if (event != nullptr) machine().streams.block(of(event), machine().streams.of(stream));
  }
  bool queryEvent(void* event) const override {
    const std::scoped_lock lock(machine().mutex);
    return event == nullptr || machine().streams.query(of(event));
  }
  void synchronizeEvent(void* event) const override {
    const std::scoped_lock lock(machine().mutex);
    if (event != nullptr) machine().streams.wait(of(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const std::scoped_lock lock(machine().mutex);
    return (Streams::time_us(of(second)) - Streams::time_us(of(first))) / 1000;
  }

  bool queryStream(const c10::Stream& stream) const override {
    const std::scoped_lock lock(machine().mutex);
    return machine().streams.query(machine().streams.of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const std::scoped_lock lock(machine().mutex);
    machine().streams.wait(machine().streams.of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const std::scoped_lock lock(machine().mutex);
    machine().streams.wait_for_device(device < 0 ? current_device() : device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
};

}  // namespace

void register_guard() {
  c10::impl::registerDeviceGuard(c10::kCUDA, new Guard);
}

}  // namespace dtrain::test::fake_gpu
