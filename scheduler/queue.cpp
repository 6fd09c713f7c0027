#include "queue.h"

#include <algorithm>
#include <tuple>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "eligible.h"

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

struct InUse {
  int slots = 0;
  std::map<TaskId, std::string> tasks;
};

InUse in_use_by_name(const HeldSlots& held, const std::string& name) {
  InUse result;
  for (const auto& [agent, slots] : held) {
    for (const auto& [index, holder] : slots) {
      if (holder.name == name && result.tasks.emplace(holder.task, name).second) result.slots += holder.slots;
    }
  }
  return result;
}

// Returns the holders of an agent's slots by index, or of its cores by number, as far as this launch sees these.
std::map<int, const Holder*> held_of(const AgentSlots& agent, const HeldSlots& held) {
  std::map<int, const Holder*> result;
  if (agent.gpus.empty()) {
    const auto found = held.find(agent.id);
    if (found == held.end()) return result;
    for (const CoreUnit& core : agent.cores) {
      const auto holder = found->second.find(core.number);
      if (holder != found->second.end()) result[core.number] = &holder->second;
    }
    if (!agent.cores.empty()) return result;
    for (const auto& [index, holder] : found->second) {
      if (index < agent.slots) result[index] = &holder;
    }
    return result;
  }
  for (int index = 0; index < agent.slots; ++index) {
    const SlotKey key = slot_key(agent.id, agent.gpus, static_cast<std::size_t>(index), index);
    const auto found = held.find(key.name);
    if (found != held.end()) result[index] = &found->second.begin()->second;
  }
  return result;
}

std::vector<std::string> names_of(const AgentSlots& agent) {
  return agent.gpus.empty() ? std::vector<std::string>{agent.id} : agent.gpus;
}

std::set<std::string> usable_names(const TaskRequest& request) {
  const std::set<std::string> usable = usable_agents(request.agents, request.slots);
  std::set<std::string> names;
  for (const AgentSlots& agent : request.agents) {
    if (!usable.contains(agent.id)) continue;
    const std::vector<std::string> of_agent = names_of(agent);
    names.insert(of_agent.begin(), of_agent.end());
  }
  return names;
}

std::vector<CoreUnit> free_cores(const AgentSlots& agent, const std::map<int, const Holder*>& taken) {
  std::vector<CoreUnit> free;
  for (const CoreUnit& core : agent.cores) {
    if (!taken.contains(core.number)) free.push_back(core);
  }
  return free;
}

// Returns the number of free cores. For a request for all cores: all, or 0 if a core that it would divide is held.
int count_free_cores(const AgentSlots& agent, const SlotRequest& request, const std::map<int, const Holder*>& taken) {
  const auto all = static_cast<int>(agent.cores.size());
  if (request.cores_per_slot > 0) return all - static_cast<int>(taken.size());
  for (const std::vector<int>& group : divide_cores_evenly(agent.cores, request.slots)) {
    if (std::any_of(group.begin(), group.end(), [&](int core) { return taken.contains(core); })) return 0;
  }
  return all;
}

// Returns the agents with their present free slots; agents with a slot in `reserved` have none.
std::vector<AgentSlots> with_free(const TaskRequest& request, const HeldSlots& held,
                                  const std::set<std::string>& reserved) {
  std::vector<AgentSlots> agents = request.agents;
  for (AgentSlots& agent : agents) {
    const std::map<int, const Holder*> taken = held_of(agent, held);
    const auto is_reserved = [&](const std::string& name) { return reserved.contains(name); };
    if (std::ranges::any_of(names_of(agent), is_reserved)) {
      agent.free = 0;
    } else if (agent.cores.empty()) {
      agent.free = agent.slots - static_cast<int>(taken.size());
    } else {
      agent.free = count_free_cores(agent, request.slots, taken);
    }
  }
  return agents;
}

Claim pick_slots(const Placement& placement, const TaskRequest& request, const HeldSlots& held) {
  Claim claim;
  for (const AgentShare& share : placement) {
    ClaimedShare claimed{.agent = share.agent};
    const auto agent = std::find_if(request.agents.begin(), request.agents.end(),
                                    [&](const AgentSlots& agent) { return agent.id == share.agent; });
    const std::map<int, const Holder*> taken = held_of(*agent, held);
    if (!agent->cores.empty()) {
      claim.push_back(share_of_cores(*agent, request.slots, share.slots, free_cores(*agent, taken)));
      continue;
    }
    for (int index = 0; static_cast<int>(claimed.slots.size()) < share.slots; ++index) {
      if (taken.contains(index)) continue;
      claimed.slots.push_back(index);
      if (!agent->gpus.empty()) claimed.gpus.push_back(agent->gpus[static_cast<std::size_t>(index)]);
    }
    claim.push_back(std::move(claimed));
  }
  return claim;
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
  const std::set<std::string> usable = usable_agents(request.agents, request.slots);
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
    waiting.reason = before.empty() ? "nothing in the cluster file holds " + slots_text(request.slots)
                                    : named(before) + (before.size() == 1 ? " goes" : " go") + " first";
    return waiting;
  }
  waiting.reason = named(holders.tasks) + (holders.tasks.size() == 1 ? " holds " : " hold ") + std::to_string(taken) +
                   " of " + count_of(total, of_cores ? "core" : "slot");
  if (usable.size() == 1) waiting.reason += " of " + *usable.begin();
  if (of_cores) {
    waiting.reason += request.slots.cores_per_slot > 0 ? ", and it needs " + slots_text(request.slots)
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

SlotKey slot_key(const std::string& agent, const std::vector<std::string>& gpus, std::size_t gpu, int index) {
  return gpus.empty() ? SlotKey{agent, index} : SlotKey{gpus.at(gpu), 0};
}

std::vector<SlotKey> keys_of(const Claim& claim) {
  std::set<SlotKey> keys;
  for (const ClaimedShare& share : claim) {
    for (std::size_t i = 0; i < share.slots.size() && share.cores.empty(); ++i) {
      keys.insert(slot_key(share.agent, share.gpus, i, share.slots[i]));
    }
    for (const std::vector<int>& cores : share.cores) {
      for (const int core : cores) keys.insert({share.agent, core});
    }
  }
  return {keys.begin(), keys.end()};
}

ClaimedShare share_of_cores(const AgentSlots& agent, const SlotRequest& request, int slots,
                            std::span<const CoreUnit> free) {
  ClaimedShare share{.agent = agent.id};
  for (int slot = 0; slot < slots; ++slot) share.slots.push_back(slot);
  if (request.cores_per_slot == 0) {
    share.cores = divide_cores_evenly(agent.cores, slots);
  } else if (auto groups = take_cores(free, slots, request.cores_per_slot)) {
    share.cores = *std::move(groups);
  } else {
    throw Error("agent " + agent.id + " has too few cores for slots that it has room for: this is a bug in dtrain");
  }
  return share;
}

// Earlier tasks reserve every agent they could use, not only those they would get now: otherwise a later task could
// take slots that an earlier one needs once a running task ends. Tasks over their limit reserve nothing (see queue.h).
Verdict judge(std::span<const QueuedTask> queue, const HeldSlots& held) {
  const TaskRequest& request = *queue.back().request;
  std::set<std::string> reserved;
  std::map<TaskId, std::string> before;  // tasks that reserve slots this task could use
  const std::set<std::string> mine = usable_names(request);
  std::map<std::string, InUse> by_name;  // for names with a limit: held, or promised to earlier tasks
  // True if another task of this name would exceed max_slots.
  const auto over_limit = [&](const TaskRequest& task) {
    if (!task.max_slots) return false;
    if (!by_name.contains(task.name)) by_name[task.name] = in_use_by_name(held, task.name);
    return by_name[task.name].slots + task.slots.slots > *task.max_slots;
  };
  for (const QueuedTask& other : queue.first(queue.size() - 1)) {
    if (over_limit(*other.request)) continue;
    if (other.request->name == request.name && request.max_slots) {
      if (!by_name.contains(request.name)) by_name[request.name] = in_use_by_name(held, request.name);
      by_name[request.name].slots += other.request->slots.slots;
      by_name[request.name].tasks[other.id] = request.name;
    }
    for (const std::string& name : usable_names(*other.request)) {
      reserved.insert(name);
      if (mine.contains(name)) before[other.id] = other.request->name;
    }
  }
  Verdict verdict;
  if (over_limit(request)) {
    const InUse& used = by_name[request.name];
    verdict.waiting = {ids_of(used.tasks), named(used.tasks) + (used.tasks.size() == 1 ? " has " : " have ") +
                                               std::to_string(used.slots) + " of the " +
                                               std::to_string(*request.max_slots) + " slots that max_slots allows"};
    return verdict;
  }
  if (const auto placement = place(with_free(request, held, reserved), request.slots)) {
    verdict.claim = pick_slots(*placement, request, held);
    return verdict;
  }
  // Either an earlier task reserves the room, or there is no room.
  if (place(with_free(request, held, {}), request.slots)) {
    verdict.waiting = {ids_of(before), named(before) + (before.size() == 1 ? " goes" : " go") + " first"};
  } else {
    verdict.waiting = no_room(request, held, before);
  }
  return verdict;
}

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
  // Spares tasks whose slots do not help, such as slots of other agents; tries first the tasks that should stop last.
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
