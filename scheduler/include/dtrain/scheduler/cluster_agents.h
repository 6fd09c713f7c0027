// The cluster a command is about: which agents there are, and what is known of their slots without asking any of them.
// Any thread; looking at GPUs may block where a driver hangs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"
#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

// A slot of an agent on this machine; of agents elsewhere only the index is known.
struct ClusterSlot {
  int index = 0;          // from 0, on its agent
  std::vector<int> cpus;  // of a CPU slot: its logical CPUs, ascending
  int gpu = -1;           // of a GPU slot: NVML's index, and what it says of it
  std::string gpu_uuid;
  std::string gpu_name;
  std::uint64_t gpu_memory = 0;  // bytes; 0: not told
};

struct ClusterAgent {
  // As in the cluster file. slot_type is kAuto only where it is on another machine and not declared; slots may be fewer
  // than declared where GPUs are missing.
  config::Agent agent;
  bool here = false;  // on this machine
  std::vector<ClusterSlot> slots;
};

struct ClusterAgents {
  config::Cluster cluster;  // with its agents, also where the file names none
  std::string source;       // for people: "cluster.yaml", "the Slurm allocation 17", "this machine"
  bool declared = true;     // false: nobody has said how many slots this machine has
  std::vector<ClusterAgent> agents;
  std::vector<std::string> warnings;
};

struct ClusterWish {
  // What a slot of an agent that does not say is, here: kAuto GPUs where there are any, else cores.
  config::AgentSlotType slot_type = config::AgentSlotType::kAuto;
  // Where nobody has declared slots: this machine has so many CPU slots at least, more than cores if need be.
  int least_slots = 0;
};

// `given` (--cluster), else $DTRAIN_CLUSTER, ./cluster.yaml, the user's $XDG_CONFIG_HOME/dtrain/cluster.yaml, the Slurm
// allocation this process is in, else this machine. A file is a cluster file or a hostfile of MPI. ConfigError.
ClusterAgents find_cluster(const std::filesystem::path& given, const std::map<std::string, std::string>& variables,
                           const ClusterWish& wish = {});

// All of them, wholly free: what never_fits() asks for and where place() begins.
std::vector<AgentSlots> empty_slots(const ClusterAgents& cluster);

}  // namespace dtrain::scheduler
