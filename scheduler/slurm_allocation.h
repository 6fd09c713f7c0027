// The Slurm allocation this process is in, as a cluster. Private to scheduler; pure, any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"

namespace dtrain::scheduler {

struct SlurmAllocation {
  std::string job;          // its id
  std::string here;         // the node this process is on, by Slurm's name; empty: none of them, or not known
  config::Cluster cluster;  // an agent a node, launcher slurm
  bool of_cores = false;    // nobody has said how many tasks a node has, or CPUs a task: slots are made of its cores
};

// From what Slurm sets in the environment of salloc's shell and of sbatch's script. A node has as many slots as tasks
// where the allocation was asked for tasks, else as many as its CPUs divided by the CPUs of a task, which is 1 (and
// `of_cores` set) where the allocation was not asked for either. `wanted`: the type
// of the slots. Where GPUs were allocated and the type is not kCpu, a node has no more slots than GPUs, and they are
// GPUs; where kCuda is wanted but Slurm does not tell of GPUs (salloc with --gres sets no variable), the type is not
// known. Nothing: not in an allocation. ConfigError where what is set does not fit together.
std::optional<SlurmAllocation> find_slurm_allocation(const std::map<std::string, std::string>& variables,
                                                     config::AgentSlotType wanted);

// "n[1-3,07],gpu-a[1-2]x" as names; "2(x3),1" as numbers. ConfigError beginning with `name` where they cannot be.
std::vector<std::string> expand_hostlist(const std::string& text, const std::string& name);
std::vector<int> expand_counts(const std::string& text, const std::string& name);

}  // namespace dtrain::scheduler
