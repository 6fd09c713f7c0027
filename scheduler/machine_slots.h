// What the slots of agents on this machine are: its GPUs and cores, handed out. Private to scheduler; one thread.
#pragma once

#include <string>
#include <vector>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::scheduler {

// Fills in slots, slot type and, where an agent declares none (0), their number, of the agents that are here. What is
// declared beyond the cores shares them, with a warning; GPUs that are not there, or not healthy, are no slots.
void add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine, const SlotDefaults& defaults,
                               std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
