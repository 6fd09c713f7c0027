// Gives the GPUs and cores of this machine to the slots of its agents. Private to scheduler; one thread.
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

  // Returns the cores' worth of time that the cgroup grants: at least 1.
  int granted() const;
  // Returns a slot with these CPUs if `slots` slots share the time.
  ClusterSlot slot_with(std::vector<int> of_slot, int slots) const;
};
CoresHere cores_here(const Machine& machine);

// Sets slots, slot type and, if an agent declares no number (0), the number of slots, for the agents on this machine.
// If more slots than cores are declared, slots share cores, with a warning. Missing or unhealthy GPUs are no slots.
// Agents `of_cores` get their cores. Returns the cores of this machine, if an agent is here.
std::vector<host::Core> add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine,
                                                  const SlotDefaults& defaults,
                                                  const std::map<std::string, std::string>& variables,
                                                  std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
