// What placing, refusing and waiting share. Pure, any thread. Private to scheduler.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

// Of the request's pool and slot type.
bool is_eligible(const AgentSlots& agent, const SlotRequest& request);

// The request's slots on all of its agents, equally many on each: agents of equally many cores, which the request gets
// as a whole (cores_per_slot: auto). Nothing: there is another kind of agent, or cores are missing or not free.
std::optional<Placement> all_agents(std::span<const AgentSlots> agents, const SlotRequest& request);

// The agents with slots of the request in the place of cores, in `converted`; as they are if no agent has cores.
std::span<const AgentSlots> in_slots(std::span<const AgentSlots> agents, const SlotRequest& request,
                                     std::vector<AgentSlots>& converted);

// By their number of slots, larger first; in the order they were given.
using SizedAgents = std::map<int, std::vector<const AgentSlots*>, std::greater<>>;
SizedAgents by_size(std::span<const AgentSlots* const> agents);

// The agents that a placement of the request uses for some state of what is free.
std::set<std::string> usable_agents(std::span<const AgentSlots> agents, const SlotRequest& request);

}  // namespace dtrain::scheduler
