#include <algorithm>

#include "eligible.h"
#include "queue.h"
#include "whole_agents.h"

namespace dtrain::scheduler {
namespace {

// Whether one agent of this size and others of `sizes` have exactly `slots` together.
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
