// The sources of a cluster's agents besides a cluster file are a hostfile of Open MPI or MPICH, an allocation of Slurm,
// and this machine with its GPUs and cores. Private to scheduler; any thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::scheduler {

// True if a file is a hostfile, not a cluster file. A hostfile does not end in .yaml, .yml or .json, and its first line
// that is not empty or a comment is no key, as in a cluster file. False if the file cannot be read.
bool is_hostfile(const std::filesystem::path& file);

// Reads lines such as "host slots=4 max-slots=8", "user@host slots=4", "host:4", "# comment". A line without a number
// is one slot, and lines with the same host add up. The launcher is mpi. Reports all ConfigErrors at once.
config::Cluster read_hostfile(const std::filesystem::path& file, std::vector<std::string>& warnings);

// Returns the text as an agent's id: characters that an id may not hold become '-'.
std::string id_of_host(const std::string& host);

// The Slurm allocation that contains this process, as a cluster.
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

// Sets slots, slot type and, if an agent declares no number (0), the number of slots, for the agents on this machine.
// If more slots than cores are declared, slots share cores, with a warning. Missing or unhealthy GPUs are no slots.
// Agents `of_cores` get their cores. Returns the cores of this machine, if an agent is here.
std::vector<host::Core> add_slots_of_this_machine(std::vector<ClusterAgent>& agents, const Machine& machine,
                                                  const SlotDefaults& defaults,
                                                  const std::map<std::string, std::string>& variables,
                                                  std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
