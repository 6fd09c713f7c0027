#include "task_facts.h"

namespace dtrain::cli {

Json time_of(const std::optional<Nanoseconds>& wall) {
  return wall ? Json(format_utc(*wall)) : Json();
}

Json reason_of(const scheduler::Task& task) {
  const std::string& reason = task.waiting ? task.waiting->reason : task.reason;
  return reason.empty() ? Json() : Json(reason);
}

Json behind_of(const scheduler::Task& task) {
  return task.waiting ? Json(task.waiting->behind) : Json();
}

Json agents_of(const scheduler::Task& task) {
  if (task.claim.empty()) return {};
  Json agents = Json::array();
  for (const scheduler::ClaimedShare& share : task.claim) agents.push_back(share.agent);
  return agents;
}

ConfigError no_such_task(scheduler::TaskId id) {
  return ConfigError("there is no task " + std::to_string(id), "dtrain task list shows those there are");
}

std::string state_text(const scheduler::Task& task) {
  std::string text = to_string(task.state);
  if (task.exit_code) text += " (exit code " + std::to_string(*task.exit_code) + ")";
  const Json reason = reason_of(task);
  return reason.is_null() ? text : text + ": " + reason.get<std::string>();
}

}  // namespace dtrain::cli
