// What the slots of agents on this machine are: its GPUs and cores, handed out. Private to scheduler; one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::scheduler {

struct CoresHere {
  std::vector<host::Core> cores;
  std::vector<std::vector<int>> cpus;  // of each core
  double limit = 0;                    // CPUs' worth of time that the cgroup grants
  bool limited = false;                // it grants less time than there are CPUs

  // How many cores' worth of time there is: at least 1.
  int granted() const;
  // A slot with these CPUs, where so many slots share the time.
  ClusterSlot slot_with(std::vector<int> of_slot, int slots) const;
};
CoresHere cores_here(const Machine& machine);

// Fills in slots, slot type and, where an agent declares none (0), their number, of the agents that are here. What is
// declared beyond the cores shares them, with a warning; GPUs that are not there, or not healthy, are no slots. Agents
// `of_cores` get their cores. Returns the cores of this machine, if an agent is here.
std::vector<host::Core> add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine,
                                                  const SlotDefaults& defaults,
                                                  const std::map<std::string, std::string>& variables,
                                                  std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
