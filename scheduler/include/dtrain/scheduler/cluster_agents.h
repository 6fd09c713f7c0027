// The cluster that a command uses: its agents, and the facts about their slots that are known without contacting other
// hosts. Any thread; looking at GPUs may block if a driver hangs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"
#include "dtrain/host/cpu.h"
#include "dtrain/host/gpus.h"
#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

// A slot of an agent on this machine. For slots on other machines only the index is known. If an agent's slots are made
// of cores, this is one core.
struct ClusterSlot {
  int index = 0;          // from 0, on its agent; core: CoreUnit::number; -1: no slot, because the GPU has a problem
  std::vector<int> cpus;  // its logical CPUs, ascending; GPU slot: those near the GPU
  int cores = 0;          // number of physical cores that these belong to
  int threads = 0;        // one for each core, or fewer if a cgroup grants less time
  int most_threads = 0;   // one for each logical CPU, or fewer if a cgroup grants less time
  int node = 0;           // of a core: its NUMA node, its socket, and the class of its speed
  int package = 0;
  int kind = 0;
  int gpu = -1;          // of a GPU slot: NVML's index; -1: a MIG instance, or no GPU
  std::string gpu_uuid;  // MIG instance: its name, as in CUDA_VISIBLE_DEVICES; empty: a CPU slot
  std::string gpu_name;
  std::uint64_t gpu_memory = 0;  // bytes; 0: not reported
  std::string problem;           // cause for which it is no slot

  bool is_gpu() const { return gpu >= 0 || !gpu_uuid.empty(); }
};

struct ClusterAgent {
  // The agent of the cluster file. An agent on this machine has the slots that really exist: of type kCuda or kCpu, and
  // no more GPUs than the machine has.
  config::Agent agent;
  bool here = false;  // on this machine
  // No file declares its slots; they are made of its cores, as the experiment requests. Then agent.slots is the most
  // that one experiment may have.
  bool of_cores = false;
  std::vector<ClusterSlot> slots;
};

struct ClusterAgents {
  config::Cluster cluster;     // with its agents, even if the file names none
  std::string source;          // for people: "cluster.yaml", "the Slurm allocation 17", "this machine"
  std::filesystem::path file;  // absolute; empty: there is none
  bool declared = true;        // false: no file states the number of slots of this machine
  std::vector<ClusterAgent> agents;
  std::vector<host::Core> cores;  // of this machine; empty: no agent is here
  std::vector<std::string> warnings;
};

// The known facts about this machine. Other facts are looked up when they are needed.
struct Machine {
  std::string name;
  std::optional<std::vector<host::Core>> cores;
  host::TopologySource topology;    // source of the cores
  std::optional<double> cpu_limit;  // CPUs' worth of time
  std::optional<std::vector<host::GpuInfo>> gpus;
  // Looks up the GPUs; empty: host::Gpus does, which waits for the driver without a limit.
  std::function<std::vector<host::GpuInfo>(std::vector<std::string>& warnings)> look_at_gpus;
  std::filesystem::path root = "/";  // folder that holds sys/
};

struct SlotDefaults {
  // The type of an agent's slots if the agent declares none: kAuto means GPUs if there are any, else cores.
  config::AgentSlotType slot_type = config::AgentSlotType::kAuto;
  // The least number of CPU slots of this machine if none are declared, even if it has fewer cores.
  int least_slots = 0;
};

// Reads a cluster file, or a hostfile of MPI. ConfigError.
config::Cluster read_cluster_file(const std::filesystem::path& file, std::vector<std::string>& warnings);

// Uses `given` (--cluster), else $DTRAIN_CLUSTER, ./cluster.yaml, the user's $XDG_CONFIG_HOME/dtrain/cluster.yaml, the
// Slurm allocation this process is in, else this machine. A file is a cluster file or a hostfile of MPI. ConfigError.
ClusterAgents find_cluster(const std::filesystem::path& given, const std::map<std::string, std::string>& variables,
                           const SlotDefaults& defaults = {}, const Machine& machine = {});

// True if options of sbatch or srun request GPUs: --gres=gpu:2, --gpus-per-node 4, -G 8, …
bool ask_for_gpus(const std::vector<std::string>& options);

// Returns all agents, entirely free: the input of never_fits() and the start of place().
std::vector<AgentSlots> empty_slots(const ClusterAgents& cluster);

// Makes one slot for each healthy GPU that CUDA_VISIBLE_DEVICES (of `variables`) shows, in its order, numbered from 0.
// Each slot has a share of the cores near its GPU (those of its NUMA node). These cores are divided evenly among all
// GPUs near them, visible or not, so launches on different GPUs get different cores. After these slots follow the GPUs
// that cannot be slots, numbered -1, each with its problem.
std::vector<ClusterSlot> find_gpu_slots(const Machine& machine, const std::map<std::string, std::string>& variables,
                                        std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
