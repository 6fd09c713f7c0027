// Receives every phase, scope, step and collective while a deep window is open, with the moments at which each phase
// began and ended; dumps only have sums of these times. The training thread calls it at every change of phase, so it
// must be quick.
#pragma once

#include <cstdint>
#include <string_view>

#include "dtrain/profile/records.h"

namespace dtrain::profile {

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Times are the host's monotonic clock, in nanoseconds.
  virtual void on_phase(Phase phase, std::int64_t start_ns, std::int64_t end_ns) = 0;
  // Receives a scope of the trial when it ends (scope.h).
  virtual void on_scope(std::string_view path, std::int64_t start_ns, std::int64_t end_ns) = 0;
  virtual void on_step(std::int64_t batch, std::int64_t start_ns, std::int64_t end_ns) = 0;
  virtual void on_collective(std::int64_t batch, const CollectiveRecord& collective) = 0;
};

}  // namespace dtrain::profile
