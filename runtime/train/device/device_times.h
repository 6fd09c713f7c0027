// Measures when a GPU begins the phases of a step: an event on the compute stream marks each change of phase and is
// read when the GPU has passed it. Nothing waits. Training thread.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "dtrain/base/clock.h"
#include "dtrain/profile/device_timeline.h"

namespace dtrain::train {

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

}  // namespace dtrain::train
