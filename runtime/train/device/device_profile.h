// Records a rank's GPU: memory by phase, and the times of steps. Does nothing on a CPU. Training thread.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include "device/device_times.h"
#include "device/steps_in_flight.h"
#include "dtrain/base/clock.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

class DeviceProfile {
 public:
  // `device_times`: time a step's phases on the device, otherwise on the host. The references outlive the object.
  DeviceProfile(c10::Device device, profile::Recorder& recorder, const Clock& clock, bool device_times);
  ~DeviceProfile();
  DeviceProfile(const DeviceProfile&) = delete;
  DeviceProfile& operator=(const DeviceProfile&) = delete;

  // Waits until the device has finished all work, and records its steps. Called at the ends of loops and of deep
  // windows. Errors: those of StepsInFlight::wait_for_all().
  void settle(StepsInFlight& in_flight);

 private:
  const c10::Device device_;
  profile::Recorder& recorder_;
  std::unique_ptr<profile::DeviceMemory> memory_;
  std::optional<DeviceTimes> times_;
};

}  // namespace dtrain::train
