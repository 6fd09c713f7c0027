#include "dtrain/scheduler/task.h"

#include <array>

namespace dtrain::scheduler {

// Ends are called as runs' ends are in their events.
std::string to_string(TaskState state) {
  constexpr std::array kNames{"queued", "starting", "running", "stopping", "done", "failed", "interrupted", "paused"};
  return kNames.at(static_cast<std::size_t>(state));
}

bool has_ended(TaskState state) {
  return state >= TaskState::kDone && state != TaskState::kPaused;
}

}  // namespace dtrain::scheduler
