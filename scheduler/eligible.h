// Functions that placing, refusing and waiting share. Pure, any thread. Private to scheduler.
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

// True if the agent has the request's pool and slot type.
bool is_eligible(const AgentSlots& agent, const SlotRequest& request);

// Places the request evenly on all of its agents, if each has the same number of cores and the request gets all cores
// (cores_per_slot: auto). Nothing: there is another kind of agent, or cores are missing or not free.
std::optional<Placement> all_agents(std::span<const AgentSlots> agents, const SlotRequest& request);

// Returns the agents with slots of the request in place of cores, held in `converted`; if no agent has cores, `agents`.
std::span<const AgentSlots> in_slots(std::span<const AgentSlots> agents, const SlotRequest& request,
                                     std::vector<AgentSlots>& converted);

// Agents by their number of slots, larger first; agents of one size stay in the given order.
using SizedAgents = std::map<int, std::vector<const AgentSlots*>, std::greater<>>;
SizedAgents by_size(std::span<const AgentSlots* const> agents);

// Returns the agents that a placement of the request may use, for any state of the free slots.
std::set<std::string> usable_agents(std::span<const AgentSlots> agents, const SlotRequest& request);

}  // namespace dtrain::scheduler
