#include "tasks/task_facts.h"

namespace dtrain::cli {

Json time_of(const std::optional<Nanoseconds>& wall) {
  return wall ? Json(format_utc(*wall)) : Json();
}

const std::string& reason_of(const scheduler::Task& task) {
  return task.waiting ? task.waiting->reason : task.reason;
}

std::string state_text(const scheduler::Task& task) {
  std::string text = to_string(task.state);
  if (task.exit_code) text += " (exit code " + std::to_string(*task.exit_code) + ")";
  const std::string& reason = reason_of(task);
  return reason.empty() ? text : text + ": " + reason;
}

}  // namespace dtrain::cli
