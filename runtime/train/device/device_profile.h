// Records a rank's GPU: memory by phase, the times of steps, and waits of the host that should not be. Does nothing on
// a CPU. Training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "device/steps_in_flight.h"
#include "dtrain/base/clock.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::train {

// Reads the memory of a rank's tensors on its device and the memory that libtorch's caching allocator reserves.
// Returns nullptr for the CPU, whose memory is the process's, and for a device whose allocator does not count.
std::unique_ptr<profile::DeviceMemory> device_memory(const c10::Device& device);

// Returns the memory that the allocator keeps for later tensors to the device. Waits until the device has finished all
// work.
void release_unused_memory(const c10::Device& device);

// Measures when a GPU begins the phases of a step: an event on the compute stream marks each change of phase and is
// read when the GPU has passed it. Nothing waits.
//
// The time between two events on the device is exact. The offset of the device's clock to the host's is bounded: an
// event fires after the host records it and before the host sees it.
class DeviceTimes final : public profile::DeviceTimeline {
 public:
  DeviceTimes(c10::Device device, const Clock& clock) : device_(device), clock_(clock) {}

  // Marks the calling thread's current stream. A failed device reaches no mark; waits for the device report the error.
  void mark() override;
  bool take(std::size_t count, std::vector<std::int64_t>& times) override;

 private:
  struct Mark {
    c10::Event event;
    double recorded_ns = 0;  // not later than the device's time of the event
  };
  c10::Event free_event();
  bool has_passed(const c10::Event& event);
  void measure_from(c10::Event event, double since_origin_ns);

  const c10::Device device_;
  const Clock& clock_;
  std::deque<Mark> marks_;             // oldest first
  std::vector<c10::Event> free_;       // for reuse
  std::optional<c10::Event> origin_;   // the event from which others are measured
  std::optional<double> origin_time_;  // time of origin_ on the host's clock, in nanoseconds
  std::vector<double> since_origin_;   // of the marks that are being taken, in nanoseconds
  std::int64_t last_taken_ = 0;
  bool failed_ = false;
};

class DeviceProfile {
 public:
  // `device_times`: time a step's phases on the device, otherwise on the host. The references outlive the object.
  DeviceProfile(c10::Device device, profile::Recorder& recorder, const Clock& clock, bool device_times);
  ~DeviceProfile();
  DeviceProfile& operator=(DeviceProfile&&) = delete;

  // Waits until the device has finished all work, and records its steps. Called at the ends of loops and of deep
  // windows. Errors: those of StepsInFlight::wait_for_all().
  void settle(StepsInFlight& in_flight);

 private:
  const c10::Device device_;
  profile::Recorder& recorder_;
  std::unique_ptr<profile::DeviceMemory> memory_;
  std::optional<DeviceTimes> times_;
};

// DTRAIN_SYNC_DEBUG=error turns waits for the GPU in libtorch's operations into errors while a step is submitted, to
// find a wait that slows every step. The switch is libtorch's (torch.cuda.set_sync_debug_mode in Python). No function
// for it can be called without CUDA headers, so this class sets the variable behind it.
class SyncDebug {
 public:
  // The first batches may wait: allocators warm up, and strategies are compared.
  static constexpr std::int64_t kFirstBatch = 40;

  // Reads DTRAIN_SYNC_DEBUG: not set or "off": nothing; "error": from batch kFirstBatch on. ConfigError for another
  // value, or if libtorch has no such switch.
  explicit SyncDebug(c10::Device device);

  // Spans code that must not wait.
  class Scope {
   public:
    Scope(SyncDebug& debug, std::int64_t batch);
    ~Scope();
    Scope& operator=(Scope&&) = delete;

   private:
    int* mode_ = nullptr;
  };

 private:
  int* mode_ = nullptr;  // libtorch's; null: off
};

}  // namespace dtrain::train
