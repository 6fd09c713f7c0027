// Measures the time by which the exchanges of a step delay computing: on a device the time of the compute stream, by
// events that are read late; on a CPU the time of the calling thread.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "dtrain/base/clock.h"

namespace dtrain::train {

class ExposedTimes {
 public:
  explicit ExposedTimes(c10::Device device) : device_(device) {}

  // Spans work for exchanges on the calling thread's current stream. `count`: measure the time of this step.
  class Stretch {
   public:
    Stretch(ExposedTimes& times, bool count);
    ~Stretch();
    Stretch(const Stretch&) = delete;
    Stretch& operator=(const Stretch&) = delete;

   private:
    ExposedTimes& times_;
    bool count_;
    Nanoseconds began_{0};
  };
  // Ends a step that was counted.
  void end_step(bool compressed);
  void forget() { steps_.clear(); }

  struct Step {
    bool compressed = false;
    Nanoseconds exposed{0};
  };
  // Returns all steps that were counted. Waits for the device.
  std::vector<Step> take();

 private:
  using Events = std::vector<std::pair<c10::Event, c10::Event>>;
  struct Counted {
    Step step;
    Events events;
  };
  c10::Event event_now() const;

  const c10::Device device_;
  SystemClock clock_;
  Events events_;                    // of this step
  std::optional<c10::Event> began_;  // of the current stretch
  Nanoseconds exposed_{0};           // of this step, on a CPU
  std::vector<Counted> steps_;
};

}  // namespace dtrain::train
