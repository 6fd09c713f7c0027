// Times of one step's exchange on a device, by events on the compute stream that are read when the device has passed
// them. Nothing waits.
//
// begin_backward() comes from the training thread, the other marks from the thread that runs backward.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "dtrain/comm/fusion_tuner.h"

namespace dtrain::train {

class ExchangeEvents {
 public:
  // `of_gradients`: mark each gradient, too.
  ExchangeEvents(c10::Device device, bool of_gradients) : device_(device), of_gradients_(of_gradients) {}

  // Times are measured from here. A later call replaces the marks of gradients.
  void begin_backward();
  void gradient_ready(std::size_t parameter);

  // Spans the stream's work for the exchange and its waits for operations. A stretch within another one is part of it.
  class Stretch {
   public:
    explicit Stretch(ExchangeEvents* events);  // null: nothing is marked
    ~Stretch() { end(); }
    Stretch& operator=(Stretch&&) = delete;
    void end();

   private:
    ExchangeEvents* events_;
  };

  // The times of a step as FusionTuner::add_times() takes them.
  struct Times {
    std::vector<double> ready_us;  // without the stretches before; negative: not marked
    comm::ExchangeTimes exchange;  // until the end of the last stretch
  };
  // To be called when the device has passed all marks.
  Times read(std::size_t parameters) const;

 private:
  struct Mark {
    std::size_t parameter = 0;
    std::size_t stretches = 0;  // that have ended before
    c10::Event event;
  };
  c10::Event event_now() const;

  const c10::Device device_;
  const bool of_gradients_;
  std::optional<c10::Event> backward_began_;
  std::vector<Mark> gradients_;
  std::vector<c10::Event> begins_, ends_;  // of stretches
  int depth_ = 0;                          // of open stretches
};

}  // namespace dtrain::train
