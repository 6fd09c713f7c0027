// When a GPU comes to the phases of a step: an event on the compute stream at each change of phase, read when the GPU
// is past it. Nothing waits. Training thread.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "dtrain/base/clock.h"
#include "dtrain/profile/device_timeline.h"

namespace dtrain::train {

// An event's time on the device is exact relative to another's. Where the device's clock and the host's meet is known
// from what must be so: an event fires after it was recorded and before the host sees it.
class DeviceTimes final : public profile::DeviceTimeline {
 public:
  DeviceTimes(c10::Device device, const Clock& clock) : device_(device), clock_(clock) {}

  // On the calling thread's current stream. A device that has failed comes to no mark; whoever waits for it says so.
  void mark() override;
  bool take(std::size_t count, std::vector<std::int64_t>& times) override;

 private:
  struct Mark {
    c10::Event event;
    double recorded_ns = 0;  // or later
  };
  c10::Event free_event();
  bool has_passed(const c10::Event& event);
  void measure_from(c10::Event event, double since_origin_ns);

  const c10::Device device_;
  const Clock& clock_;
  std::deque<Mark> marks_;             // oldest first
  std::vector<c10::Event> free_;       // to be used again
  std::optional<c10::Event> origin_;   // from which others are measured
  std::optional<double> origin_time_;  // of the host's clock, in nanoseconds
  std::vector<double> since_origin_;   // of the marks that are being taken, in nanoseconds
  std::int64_t last_taken_ = 0;
  bool failed_ = false;
};

}  // namespace dtrain::train
