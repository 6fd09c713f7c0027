#include "device/device_profile.h"

#include <chrono>
#include <thread>

#include "device/device_memory.h"

namespace dtrain::train {

namespace {

using SteadyClock = std::chrono::steady_clock;

// Limits of the polling after the device has finished all work.
constexpr std::chrono::seconds kMostAsking{2};
constexpr std::chrono::microseconds kBetweenQuestions{20};

}  // namespace

DeviceProfile::DeviceProfile(c10::Device device, profile::Recorder& recorder, const Clock& clock, bool device_times)
    : device_(device), recorder_(recorder), memory_(device_memory(device)) {
  if (device.is_cpu() || !recorder.enabled()) return;
  if (device_times) times_.emplace(device, clock);
  recorder_.hold_steps(times_ ? &*times_ : nullptr);
  recorder_.watch(memory_.get());
}

DeviceProfile::~DeviceProfile() {
  recorder_.release_steps();
  recorder_.watch(nullptr);
}

void DeviceProfile::settle(StepsInFlight& in_flight) {
  if (device_.is_cpu()) return;
  in_flight.wait_for_all();
  const auto began = SteadyClock::now();
  while (!recorder_.hand_on_steps() && SteadyClock::now() - began < kMostAsking)
    std::this_thread::sleep_for(kBetweenQuestions);
}

}  // namespace dtrain::train
