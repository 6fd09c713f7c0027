// The Slurm allocation that contains this process, as a cluster. Private to scheduler; pure, any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"

namespace dtrain::scheduler {

struct SlurmAllocation {
  std::string job;          // its id
  std::string here;         // Slurm's name of this process's node; empty: none of them, or not known
  config::Cluster cluster;  // an agent a node, launcher slurm
  bool of_cores = false;    // neither tasks a node nor CPUs a task were set: slots are made of cores
};

// Reads the variables that Slurm sets for salloc's shell and sbatch's script. If the allocation requested tasks, a node
// has as many slots as tasks. Otherwise it has its CPUs divided by the CPUs of a task, which are 1 (and `of_cores` is
// set) if not requested either. `wanted`: the type of the slots. If GPUs were allocated and the type is not kCpu, the
// slots are GPUs, and a node has no more slots than GPUs. If kCuda is wanted but Slurm reports no GPUs (salloc with
// --gres sets no variable), the type is not known. Nothing: there is no allocation. ConfigError if the variables
// contradict each other.
std::optional<SlurmAllocation> find_slurm_allocation(const std::map<std::string, std::string>& variables,
                                                     config::AgentSlotType wanted);

// Expand "n[1-3,07],gpu-a[1-2]x" to names, and "2(x3),1" to numbers. ConfigError, which begins with `name`, if invalid.
std::vector<std::string> expand_hostlist(const std::string& text, const std::string& name);
std::vector<int> expand_counts(const std::string& text, const std::string& name);

}  // namespace dtrain::scheduler
