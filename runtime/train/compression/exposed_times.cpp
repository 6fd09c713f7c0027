#include "compression/exposed_times.h"

#include <cmath>
#include <exception>

#include "device/training_device.h"

namespace dtrain::train {

c10::Event ExposedTimes::event_now() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(current_stream(device_));
  return event;
}

ExposedTimes::Stretch::Stretch(ExposedTimes& times, bool count) : times_(times), count_(count) {
  if (!count_) return;
  if (times_.device_.is_cpu()) {
    began_ = times_.clock_.monotonic();
  } else {
    times_.began_.emplace(times_.event_now());
  }
}

ExposedTimes::Stretch::~Stretch() {
  if (!count_) return;
  if (times_.device_.is_cpu()) {
    times_.exposed_ += times_.clock_.monotonic() - began_;
    return;
  }
  try {
    times_.events_.emplace_back(std::move(*times_.began_), times_.event_now());
  } catch (const std::exception&) {  // a device that has failed: waits for it report the error
  }
}

void ExposedTimes::end_step(bool compressed) {
  steps_.push_back({{compressed, std::exchange(exposed_, Nanoseconds{0})}, std::exchange(events_, {})});
}

std::vector<ExposedTimes::Step> ExposedTimes::take() {
  std::vector<Step> steps;
  for (Counted& counted : steps_) {
    for (auto& [began, ended] : counted.events) {
      ended.synchronize();
      counted.step.exposed += Nanoseconds(std::llround(began.elapsedTime(ended) * 1e6));
    }
    steps.push_back(counted.step);
  }
  steps_.clear();
  return steps;
}

}  // namespace dtrain::train
