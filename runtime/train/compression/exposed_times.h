// How long the exchanges of a step hold up what is computed: on a device the time of the compute stream, by events that
// are read late; on a CPU that of the calling thread.
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

  // Around all that is done for exchanges, on the calling thread's current stream. `count`: whether this step's time is
  // wanted.
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
  // The step is over; of those that were counted.
  void end_step(bool compressed);
  void forget() { steps_.clear(); }

  struct Step {
    bool compressed = false;
    Nanoseconds exposed{0};
  };
  // Of all steps that were counted. Waits for the device.
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
  std::optional<c10::Event> began_;  // of the stretch under way
  Nanoseconds exposed_{0};           // of this step, on a CPU
  std::vector<Counted> steps_;
};

}  // namespace dtrain::train
