#include "tasks/task_facts.h"

#include <algorithm>

#include "dtrain/base/text.h"

namespace dtrain::cli {

Json time_of(const std::optional<Nanoseconds>& wall) {
  return wall ? Json(format_utc(*wall)) : Json();
}

const std::string& reason_of(const scheduler::Task& task) {
  return task.waiting ? task.waiting->reason : task.reason;
}

Json cores_per_slot(const scheduler::Task& task) {
  std::size_t least = 0;
  for (const scheduler::ClaimedShare& share : task.claim) {
    for (const std::vector<int>& cores : share.cores) least = least == 0 ? cores.size() : std::min(least, cores.size());
  }
  if (least > 0) return least;
  return task.cores_per_slot > 0 ? Json(task.cores_per_slot) : Json();
}

std::string slots_text(const scheduler::Task& task) {
  const std::string slots = count_of(task.slots, "slot");
  const Json cores = cores_per_slot(task);
  return cores.is_null() ? slots : slots + " x " + count_of(cores.get<std::int64_t>(), "core");
}

std::string state_text(const scheduler::Task& task) {
  std::string text = to_string(task.state);
  if (task.exit_code) text += " (exit code " + std::to_string(*task.exit_code) + ")";
  const std::string& reason = reason_of(task);
  return reason.empty() ? text : text + ": " + reason;
}

}  // namespace dtrain::cli
