#include "dtrain/scheduler/placement.h"

#include <algorithm>

#include "dtrain/base/text.h"
#include "eligible.h"
#include "whole_agents.h"

namespace dtrain::scheduler {
namespace {

const AgentSlots* one_agent(std::span<const AgentSlots* const> agents, const SlotRequest& request) {
  const AgentSlots* chosen = nullptr;
  for (const AgentSlots* agent : agents) {
    if (agent->free < request.slots) continue;
    const bool fewer_left = chosen && agent->free < chosen->free;
    const bool more_left = chosen && agent->free > chosen->free;
    const bool better = request.policy == config::FittingPolicy::kBest ? fewer_left : more_left;
    if (!chosen || better || (!fewer_left && !more_left && agent->id < chosen->id)) chosen = agent;
  }
  return chosen;
}

// Adds the first `count` agents by id to the placement, as a whole.
void take_whole(std::vector<const AgentSlots*> agents, int count, Placement& placement) {
  const auto end = agents.begin() + count;
  std::partial_sort(agents.begin(), end, agents.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  for (auto agent = agents.begin(); agent != end; ++agent) placement.push_back({(*agent)->id, (*agent)->slots});
}

std::optional<Placement> equal_agents(const SizedAgents& sizes, int slots) {
  for (const auto& [size, agents] : sizes) {
    const int wanted = slots / size;
    if (slots % size != 0 || static_cast<int>(agents.size()) < wanted) continue;
    Placement placement;
    take_whole(agents, wanted, placement);
    return placement;
  }
  return std::nullopt;
}

std::optional<Placement> different_agents(const SizedAgents& sizes, int slots) {
  std::vector<SizeGroup> groups;
  for (const auto& [size, agents] : sizes) groups.push_back({size, static_cast<int>(agents.size())});
  const auto counts = fewest_agents(groups, slots);
  if (!counts) return std::nullopt;
  Placement placement;
  auto count = counts->begin();
  for (const auto& [size, agents] : sizes) take_whole(agents, *count++, placement);
  return placement;
}

}  // namespace

std::optional<Placement> all_agents(std::span<const AgentSlots> all, const SlotRequest& request) {
  std::vector<const AgentSlots*> agents;
  for (const AgentSlots& agent : all) {
    if (is_eligible(agent, request)) agents.push_back(&agent);
  }
  const auto count = static_cast<int>(agents.size());
  if (request.cores_per_slot != 0 || request.is_single_node || count < 2 || request.slots % count != 0) return {};
  Placement placement;
  for (const AgentSlots* agent : agents) {
    const bool alike = !agent->cores.empty() && agent->cores.size() == agents.front()->cores.size();
    if (!alike || room_for(*agent, request, agent->free) < request.slots / count) return std::nullopt;
    placement.push_back({agent->id, request.slots / count});
  }
  std::sort(placement.begin(), placement.end(), [](const auto& a, const auto& b) { return a.agent < b.agent; });
  return placement;
}

bool is_eligible(const AgentSlots& agent, const SlotRequest& request) {
  const auto any = config::AgentSlotType::kAuto;
  return agent.resource_pool == request.resource_pool &&
         (request.slot_type == any || agent.slot_type == any || agent.slot_type == request.slot_type);
}

SizedAgents by_size(std::span<const AgentSlots* const> agents) {
  SizedAgents sizes;
  for (const AgentSlots* agent : agents) sizes[agent->slots].push_back(agent);
  return sizes;
}

int room_for(const AgentSlots& agent, const SlotRequest& request, int free) {
  if (agent.cores.empty()) return free;
  const auto cores = static_cast<int>(agent.cores.size());
  if (request.cores_per_slot > 0) return std::min(free, cores) / request.cores_per_slot;
  return free >= cores ? agent.slots : 0;
}

std::string slots_text(const SlotRequest& request) {
  const bool gpus = request.slot_type == config::AgentSlotType::kCuda;
  const std::string text = count_of(std::max(request.slots, 0), gpus ? "GPU slot" : "slot");
  return request.cores_per_slot > 0 ? text + " x " + count_of(request.cores_per_slot, "core") : text;
}

std::span<const AgentSlots> in_slots(std::span<const AgentSlots> agents, const SlotRequest& request,
                                     std::vector<AgentSlots>& converted) {
  if (std::all_of(agents.begin(), agents.end(), [](const AgentSlots& agent) { return agent.cores.empty(); })) {
    return agents;
  }
  converted.assign(agents.begin(), agents.end());
  for (AgentSlots& agent : converted) {
    if (agent.cores.empty()) continue;
    agent.free = room_for(agent, request, agent.free);
    agent.slots = room_for(agent, request, static_cast<int>(agent.cores.size()));
  }
  return converted;
}

std::optional<Placement> place(std::span<const AgentSlots> all, const SlotRequest& request) {
  if (request.slots < 1) return std::nullopt;
  std::vector<AgentSlots> converted;
  const std::span<const AgentSlots> agents = in_slots(all, request, converted);
  if (!converted.empty()) {
    if (auto placement = all_agents(all, request)) return placement;
  }
  std::vector<const AgentSlots*> eligible;
  std::vector<const AgentSlots*> whole;  // entirely free, and no larger than the request
  for (const AgentSlots& agent : agents) {
    if (!is_eligible(agent, request)) continue;
    eligible.push_back(&agent);
    if (agent.slots > 0 && agent.free == agent.slots && agent.slots <= request.slots) whole.push_back(&agent);
  }
  if (const AgentSlots* agent = one_agent(eligible, request)) return Placement{{agent->id, request.slots}};
  if (request.is_single_node) return std::nullopt;
  const SizedAgents sizes = by_size(whole);
  if (auto placement = equal_agents(sizes, request.slots)) return placement;
  if (!request.allow_heterogeneous_fits) return std::nullopt;
  return different_agents(sizes, request.slots);
}

namespace {

// True if one agent of this size and others of `sizes` have exactly `slots` together.
bool adds_up(const SizedAgents& sizes, int size, int slots) {
  if (size == slots) return true;
  std::vector<SizeGroup> others;
  for (const auto& [other, agents] : sizes) {
    const int count = static_cast<int>(agents.size()) - (other == size ? 1 : 0);
    if (count > 0) others.push_back({other, count});
  }
  return fewest_agents(others, slots - size).has_value();
}

}  // namespace

std::set<std::string> usable_agents(std::span<const AgentSlots> all, const SlotRequest& request) {
  std::vector<AgentSlots> converted;
  const std::span<const AgentSlots> agents = in_slots(all, request, converted);
  std::set<std::string> usable;
  std::vector<const AgentSlots*> whole;
  for (const AgentSlots& agent : agents) {
    if (!is_eligible(agent, request)) continue;
    if (agent.slots >= request.slots) {
      usable.insert(agent.id);
    } else if (agent.slots > 0) {
      whole.push_back(&agent);
    }
  }
  if (request.is_single_node) return usable;
  std::vector<AgentSlots> free(all.begin(), all.end());
  for (AgentSlots& agent : free) {
    if (!agent.cores.empty()) agent.free = static_cast<int>(agent.cores.size());
  }
  if (const auto placement = all_agents(free, request)) {
    for (const AgentShare& share : *placement) usable.insert(share.agent);
  }
  const SizedAgents sizes = by_size(whole);
  for (const auto& [size, of_size] : sizes) {
    const bool alike = request.slots % size == 0 && static_cast<int>(of_size.size()) >= request.slots / size;
    if (!alike && !(request.allow_heterogeneous_fits && adds_up(sizes, size, request.slots))) continue;
    for (const AgentSlots* agent : of_size) usable.insert(agent->id);
  }
  return usable;
}

}  // namespace dtrain::scheduler
