#include "dtrain/profile/trace_window.h"

namespace dtrain::profile {

void TraceSchedule::add(const TraceWindow& window) {
  windows_.push_back(window);
}

std::optional<TraceWindow> TraceSchedule::at(std::int64_t batch) const {
  return overlapping({batch, batch});
}

std::optional<TraceWindow> TraceSchedule::overlapping(const TraceWindow& window) const {
  for (const TraceWindow& other : windows_) {
    if (other.first_batch <= window.last_batch && window.first_batch <= other.last_batch) return other;
  }
  return std::nullopt;
}

}  // namespace dtrain::profile
