#include "queue.h"

#include <algorithm>
#include <set>

#include "dtrain/base/text.h"
#include "free_slots.h"

namespace dtrain::scheduler {
namespace {

constexpr std::size_t kTasksNamed = 3;

std::string named(TaskId id, const std::string& name) {
  return std::to_string(id) + " (" + name + ")";
}

// Returns "task 3 (mnist)" or "tasks 3 (mnist), 4 (mnist) and 7 more".
std::string named(const std::map<TaskId, std::string>& tasks) {
  std::vector<std::string> parts;
  for (const auto& [id, name] : tasks) {
    if (parts.size() < kTasksNamed) parts.push_back(named(id, name));
  }
  std::string text = (tasks.size() == 1 ? "task " : "tasks ") + join(parts, ", ");
  if (tasks.size() > parts.size()) text += " and " + std::to_string(tasks.size() - parts.size()) + " more";
  return text;
}

std::vector<TaskId> ids_of(const std::map<TaskId, std::string>& tasks) {
  std::vector<TaskId> ids;
  for (const auto& [id, name] : tasks) ids.push_back(id);
  return ids;
}

// Suggests a setting with which a task that waits for all cores can run beside others. Empty: none.
std::string beside(const TaskRequest& request, const InUse& held, int cores, int free) {
  if (request.slots.cores_per_slot > 0) return {};
  const int slots = request.slots.slots;
  const std::string key = "resources.cores_per_slot: ";
  if (free >= slots) return "; with " + key + std::to_string(free / slots) + " it runs beside";
  const int each = cores / std::max(1, held.slots + slots);
  if (each < 1) return {};
  return "; with " + key + std::to_string(each) + " in each of them they run beside each other";
}

// Returns the reason of a task for which other tasks hold all slots that it could use.
Waiting no_room(const TaskRequest& request, const HeldSlots& held, const std::map<TaskId, std::string>& before) {
  const std::set<std::string> usable = usable_agents(request);
  SlotRequest fewest = request.slots;
  fewest.slots = request.least();
  InUse holders;
  int taken = 0;
  int total = 0;
  bool of_cores = false;
  for (const AgentSlots& agent : request.agents) {
    if (!usable.contains(agent.id)) continue;
    of_cores = of_cores || !agent.cores.empty();
    total += agent.cores.empty() ? agent.slots : static_cast<int>(agent.cores.size());
    for (const auto& [index, holder] : held_of(agent, held)) {
      ++taken;
      if (holders.tasks.emplace(holder->task, holder->name).second) holders.slots += holder->slots;
    }
  }
  Waiting waiting;
  if (holders.tasks.empty()) {  // reserved for earlier tasks, or the task fits nowhere
    waiting.behind = ids_of(before);
    waiting.reason = before.empty() ? "nothing in the cluster file holds " + slots_text(fewest)
                                    : named(before) + (before.size() == 1 ? " goes" : " go") + " first";
    return waiting;
  }
  waiting.reason = named(holders.tasks) + (holders.tasks.size() == 1 ? " holds " : " hold ") + std::to_string(taken) +
                   " of " + count_of(total, of_cores ? "core" : "slot");
  if (usable.size() == 1) waiting.reason += " of " + *usable.begin();
  if (of_cores) {
    waiting.reason += request.slots.cores_per_slot > 0 ? ", and it needs " + slots_text(fewest)
                                                       : ", and cores_per_slot: auto takes all of them";
  }
  if (!before.empty()) {
    waiting.reason += "; then " + named(before) + (before.size() == 1 ? " goes" : " go") + " first";
  } else if (of_cores) {
    waiting.reason += beside(request, holders, total, total - taken);
  }
  holders.tasks.insert(before.begin(), before.end());
  waiting.behind = ids_of(holders.tasks);
  return waiting;
}

bool have_common(const std::set<std::string>& some, const std::set<std::string>& others) {
  return std::ranges::any_of(some, [&](const std::string& name) { return others.contains(name); });
}

}  // namespace

// Earlier tasks reserve every agent they could use, not only those they would get now: otherwise a later task could
// take slots that an earlier one needs once a running task ends. Tasks over their limit reserve nothing (see queue.h).
Verdict judge(std::span<const QueuedTask> queue, const HeldSlots& held, std::span<const QueuedTask> later) {
  const TaskRequest& request = *queue.back().request;
  std::set<std::string> reserved;
  std::map<TaskId, std::string> before;  // tasks that reserve slots this task could use
  const std::set<std::string> mine = usable_names(request);
  std::map<std::string, InUse> by_name;  // for names with a limit: held, or promised to earlier tasks
  const auto used_by = [&](const std::string& name) -> InUse& {
    const auto known = by_name.find(name);
    return known != by_name.end() ? known->second : by_name[name] = in_use_by_name(held, name);
  };
  // True if another task of this name would exceed max_slots.
  const auto over_limit = [&](const TaskRequest& task) {
    return task.max_slots && used_by(task.name).slots + task.least() > *task.max_slots;
  };
  for (const QueuedTask& other : queue.first(queue.size() - 1)) {
    if (over_limit(*other.request)) continue;
    if (other.request->name == request.name && request.max_slots) {
      InUse& used = used_by(request.name);
      used.slots += other.request->most();
      used.tasks[other.id] = request.name;
    }
    for (const std::string& name : usable_names(*other.request)) {
      reserved.insert(name);
      if (mine.contains(name)) before[other.id] = other.request->name;
    }
  }
  Verdict verdict;
  if (over_limit(request)) {
    const InUse& used = used_by(request.name);
    verdict.waiting = {ids_of(used.tasks), named(used.tasks) + (used.tasks.size() == 1 ? " has " : " have ") +
                                               std::to_string(used.slots) + " of the " +
                                               std::to_string(*request.max_slots) + " slots that max_slots allows"};
    return verdict;
  }
  const auto could_use = [&](const QueuedTask& task) {
    return !over_limit(*task.request) && have_common(usable_names(*task.request), mine);
  };
  int most = request.most();
  if (most > request.wanted() && std::ranges::any_of(later, could_use)) most = request.wanted();
  if (request.max_slots) most = std::min(most, *request.max_slots - used_by(request.name).slots);
  verdict.claim = largest_claim(request, request.least(), most, held, reserved);
  if (verdict.claim) return verdict;
  // Either an earlier task reserves the room, or there is no room.
  if (largest_claim(request, request.least(), most, held)) {
    verdict.waiting = {ids_of(before), named(before) + (before.size() == 1 ? " goes" : " go") + " first"};
  } else {
    verdict.waiting = no_room(request, held, before);
  }
  return verdict;
}

}  // namespace dtrain::scheduler
