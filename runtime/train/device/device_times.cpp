#include "device/device_times.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "device/training_device.h"

namespace dtrain::train {

namespace {

// CUDA returns time differences as float milliseconds, which have a resolution of 0.1 us at two seconds.
constexpr double kMostDistance_ns = 2e9;

}  // namespace

c10::Event DeviceTimes::free_event() {
  if (free_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event event = std::move(free_.back());
  free_.pop_back();
  return event;
}

// Does not throw: destructors call it at changes of phase, also while an exception of a failed device is handled.
void DeviceTimes::mark() {
  if (failed_) return;
  marks_.push_back({free_event(), static_cast<double>(clock_.monotonic().count())});
  try {
    marks_.back().event.record(current_stream(device_));
  } catch (const std::exception&) {
    failed_ = true;
  }
}

bool DeviceTimes::has_passed(const c10::Event& event) {
  if (failed_) return false;
  try {
    return event.query();
  } catch (const std::exception&) {
    failed_ = true;
    return false;
  }
}

void DeviceTimes::measure_from(c10::Event event, double since_origin_ns) {
  if (origin_) free_.push_back(std::move(*origin_));
  origin_.emplace(std::move(event));
  if (origin_time_) *origin_time_ += since_origin_ns;
}

bool DeviceTimes::take(std::size_t count, std::vector<std::int64_t>& times) {
  if (count == 0) return true;
  // All events are on one stream: when the device has passed the last event, it has passed all.
  if (count > marks_.size() || !has_passed(marks_[count - 1].event)) return false;
  const auto seen_ns = static_cast<double>(clock_.monotonic().count());
  const c10::Event& origin = origin_ ? *origin_ : marks_.front().event;
  since_origin_.clear();
  double earliest_ns = 0;
  for (std::size_t i = 0; i < count; ++i) {
    // The first origin's time is 0: an event is not measured from itself.
    const bool is_origin = !origin_ && i == 0;
    since_origin_.push_back(is_origin ? 0 : origin.elapsedTime(marks_[i].event) * 1e6);
    const double possible_ns = marks_[i].recorded_ns - since_origin_.back();
    earliest_ns = i == 0 ? possible_ns : std::max(earliest_ns, possible_ns);
  }
  const double latest_ns = seen_ns - since_origin_.back();
  // The same shift for all events keeps their distances.
  origin_time_ = std::min(std::max(origin_time_.value_or(earliest_ns), earliest_ns), latest_ns);
  for (const double since_ns : since_origin_) {
    last_taken_ = std::max<std::int64_t>(last_taken_, std::llround(*origin_time_ + since_ns));
    times.push_back(last_taken_);
  }
  for (std::size_t i = 0; i < count; ++i) {
    c10::Event event = std::move(marks_.front().event);
    marks_.pop_front();
    const bool new_origin = !origin_ || (i + 1 == count && since_origin_.back() > kMostDistance_ns);
    if (!new_origin) {
      free_.push_back(std::move(event));
    } else {
      measure_from(std::move(event), since_origin_[i]);
    }
  }
  return true;
}

}  // namespace dtrain::train
