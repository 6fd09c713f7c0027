#include "free_slots.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "eligible.h"

namespace dtrain::scheduler {
namespace {

// Returns the names of the keys of an agent's slots.
std::vector<std::string> names_of(const AgentSlots& agent) {
  return agent.gpus.empty() ? std::vector<std::string>{agent.id} : agent.gpus;
}

bool is_named(const AgentSlots& agent, const std::set<std::string>& names) {
  return std::ranges::any_of(names_of(agent), [&](const std::string& name) { return names.contains(name); });
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
std::vector<AgentSlots> with_free(std::vector<AgentSlots> agents, const SlotRequest& request, const HeldSlots& held,
                                  const std::set<std::string>& reserved) {
  for (AgentSlots& agent : agents) {
    const std::map<int, const Holder*> taken = held_of(agent, held);
    if (is_named(agent, reserved)) {
      agent.free = 0;
    } else if (agent.cores.empty()) {
      agent.free = agent.slots - static_cast<int>(taken.size());
    } else {
      agent.free = count_free_cores(agent, request, taken);
    }
  }
  return agents;
}

Claim pick_slots(const Placement& placement, const std::vector<AgentSlots>& agents, const SlotRequest& request,
                 const HeldSlots& held) {
  Claim claim;
  for (const AgentShare& share : placement) {
    ClaimedShare claimed{.agent = share.agent};
    const auto agent =
        std::find_if(agents.begin(), agents.end(), [&](const AgentSlots& agent) { return agent.id == share.agent; });
    const std::map<int, const Holder*> taken = held_of(*agent, held);
    if (!agent->cores.empty()) {
      claim.push_back(share_of_cores(*agent, request, share.slots, free_cores(*agent, taken)));
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

// Returns the most slots that the task may get, on agents that are all free.
int most_of(const TaskRequest& request) {
  int all = 0;
  for (const AgentSlots& agent : request.agents) all = std::min(kMostSlots, all + agent.slots);
  return std::min(request.most(), all);
}

SlotRequest with_slots(SlotRequest request, int slots) {
  request.slots = slots;
  return request;
}

}  // namespace

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

std::set<std::string> usable_agents(const TaskRequest& request) {
  std::set<std::string> usable;
  const int most = std::max(request.least(), most_of(request));
  for (int slots = request.least(); slots <= most && usable.size() < request.agents.size(); ++slots) {
    usable.merge(usable_agents(request.agents, with_slots(request.slots, slots)));
  }
  return usable;
}

std::set<std::string> usable_names(const TaskRequest& request) {
  const std::set<std::string> usable = usable_agents(request);
  std::set<std::string> names;
  for (const AgentSlots& agent : request.agents) {
    if (!usable.contains(agent.id)) continue;
    const std::vector<std::string> of_agent = names_of(agent);
    names.insert(of_agent.begin(), of_agent.end());
  }
  return names;
}

int slots_of(const Claim& claim) {
  std::size_t slots = 0;
  for (const ClaimedShare& share : claim) slots += share.slots.size();
  return static_cast<int>(slots);
}

InUse in_use_by_name(const HeldSlots& held, const std::string& name) {
  InUse result;
  for (const auto& [agent, slots] : held) {
    for (const auto& [index, holder] : slots) {
      if (holder.name == name && result.tasks.emplace(holder.task, name).second) result.slots += holder.slots;
    }
  }
  return result;
}

std::optional<Claim> largest_claim(const TaskRequest& request, int least, int most, const HeldSlots& held,
                                   const std::set<std::string>& reserved) {
  for (int slots = std::min(most, most_of(request)); slots >= least; --slots) {
    const SlotRequest part = with_slots(request.slots, slots);
    const auto placement = place(with_free(request.agents, part, held, reserved), part);
    if (placement) return pick_slots(*placement, request.agents, part, held);
  }
  return std::nullopt;
}

void hold_all_but(const Claim& own, const TaskRequest& request, HeldSlots& held, const std::set<std::string>* names) {
  const std::vector<SlotKey> keys = keys_of(own);  // ascending
  const auto hold = [&](const SlotKey& key) {
    if (!std::binary_search(keys.begin(), keys.end(), key)) held[key.name][key.index];
  };
  for (const AgentSlots& agent : request.agents) {
    if (names && !is_named(agent, *names)) continue;
    for (const CoreUnit& core : agent.cores) hold({agent.id, core.number});
    for (int index = 0; index < agent.slots && agent.cores.empty(); ++index) {
      hold(slot_key(agent.id, agent.gpus, static_cast<std::size_t>(index), index));
    }
  }
}

HeldSlots held_after(const HeldSlots& held, const std::map<TaskId, Claim>& kept) {
  std::map<TaskId, std::vector<SlotKey>> keys;
  for (const auto& [task, claim] : kept) keys[task] = keys_of(claim);
  HeldSlots result;
  for (const auto& [name, slots] : held) {
    for (const auto& [index, holder] : slots) {
      const auto of_task = keys.find(holder.task);
      const bool stays = of_task == keys.end() ||
                         std::binary_search(of_task->second.begin(), of_task->second.end(), SlotKey{name, index});
      if (stays) result[name][index] = holder;
    }
  }
  return result;
}

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

}  // namespace dtrain::scheduler
