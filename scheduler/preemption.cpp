#include "preemption.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace dtrain::scheduler {
namespace {

HeldSlots without(const HeldSlots& held, const std::set<TaskId>& gone) {
  HeldSlots result;
  for (const auto& [name, slots] : held) {
    for (const auto& [index, holder] : slots) {
      if (!gone.contains(holder.task)) result[name][index] = holder;
    }
  }
  return result;
}

}  // namespace

std::vector<TaskId> choose_victims(std::span<const QueuedTask> queue, const HeldSlots& held,
                                   std::span<const RunningTask> running) {
  std::set<TaskId> gone;
  std::vector<RunningTask> candidates;
  for (const RunningTask& task : running) {
    if (task.is_leaving) {
      gone.insert(task.id);
    } else if (task.can_yield && task.priority > queue.back().request->priority) {
      candidates.push_back(task);
    }
  }
  const auto fits = [&] { return judge(queue, without(held, gone)).claim.has_value(); };
  if (fits()) return {};
  std::sort(candidates.begin(), candidates.end(), [](const RunningTask& a, const RunningTask& b) {
    return std::tuple(a.priority, a.started, a.id) > std::tuple(b.priority, b.started, b.id);
  });
  std::vector<TaskId> victims;
  for (const RunningTask& candidate : candidates) {
    gone.insert(candidate.id);
    victims.push_back(candidate.id);
    if (fits()) break;
  }
  if (!fits()) return {};
  // Spares those whose slots do not help, such as slots of other agents; first those that should stop last.
  for (std::size_t i = victims.size(); i-- > 0;) {
    const TaskId spared = victims[i];
    gone.erase(spared);
    if (fits()) {
      victims.erase(victims.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      gone.insert(spared);
    }
  }
  return victims;
}

}  // namespace dtrain::scheduler
