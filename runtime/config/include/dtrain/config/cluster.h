// The cluster file as typed values, and its strict reader: every error of a file is reported at once. docs/cluster.md
// describes the keys. Plain values, no threads, no global state.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/diagnostic.h"

namespace dtrain::config {

enum class AgentSlotType { kAuto, kCuda, kCpu };  // auto: GPUs if the agent has any, else cores
std::string to_string(AgentSlotType type);        // as in the file

// A machine, or a part of one.
struct Agent {
  std::string id;    // unique; letters, digits, '.', '_' and '-': it is part of file names
  std::string host;  // the id if the key is missing
  int slots = 0;     // at least 1
  AgentSlotType slot_type = AgentSlotType::kAuto;
  std::string resource_pool = "default";
  bool operator==(const Agent&) const = default;
};

enum class LauncherType { kLocal, kMpi, kSlurm };
std::string to_string(LauncherType type);  // as in the file

// The launcher that starts the ranks.
struct Launcher {
  LauncherType type = LauncherType::kLocal;
  std::vector<std::string> options;  // further arguments of mpirun or srun; none with local
  bool operator==(const Launcher&) const = default;
};

enum class FittingPolicy { kBest, kWorst };

struct Scheduler {
  FittingPolicy fitting_policy = FittingPolicy::kBest;
  bool allow_heterogeneous_fits = true;  // agents of different sizes for one experiment
  bool preemption = false;  // a task with a lower priority number makes others save and give up their slots
  std::chrono::milliseconds grow_after = std::chrono::seconds(60);  // so long an elastic task trains before it grows
  bool operator==(const Scheduler&) const = default;
};

struct Cluster {
  std::filesystem::path file;              // as it was given
  std::vector<Agent> agents;               // empty: this machine is the only one
  std::string network_interface = "auto";  // or a name ("eth0"), or an address range ("10.0.0.0/8")
  Launcher launcher;
  Scheduler scheduler;
};

// Throws ConfigErrors; a file that cannot be read is one too.
Cluster read_cluster(const std::filesystem::path& file);

}  // namespace dtrain::config
