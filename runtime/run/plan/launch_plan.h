// The run's plan, decided and checked before anything starts. Plain values.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dtrain/config/experiment.h"
#include "dtrain/profile/rank_limits.h"
#include "dtrain/run/launch.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "dtrain/scheduler/ledger.h"
#include "dtrain/scheduler/placement.h"
#include "environment.h"
#include "folder/plan_file.h"
#include "network/network_choice.h"
#include "plan/division.h"

namespace dtrain::run {

struct LaunchPlan {
  config::Experiment experiment;
  std::filesystem::path contents;  // absolute; read in the place of experiment.file; empty: that file itself
  std::vector<std::string> overrides;
  Mock mock;
  std::string host;
  std::vector<std::string> command;  // of every rank
  std::string library_path;          // its LD_LIBRARY_PATH; empty: unchanged
  scheduler::BatchSplit split;
  scheduler::ClusterAgents cluster;
  scheduler::SlotRequest request;
  config::Launcher launcher;         // the launcher of the ranks
  scheduler::Placement placement;    // as if all slots were free, until the ranks have theirs
  std::vector<RankPlacement> ranks;  // the same, rank by rank
  NetworkChoice network;             // between the hosts; no networks: not chosen yet, or all ranks are on one host
  std::map<std::string, profile::RankLimits> limits;  // of each host that is known; nothing on GPUs
  std::string why_threads;                            // the reason for the ranks' number of threads
  std::optional<Division> division;                   // with slots_per_trial: auto, the choice of the number of ranks
  bool is_trial = false;                              // as LaunchRequest::is_trial
  std::string unused_gpus;                            // of this machine, for people; empty: there are none
  std::string why_no_cuda;  // if slot_type: auto would use GPUs, but libtorch cannot; else empty
  std::vector<std::string> warnings;
  Json before;                              // plan_before() of a run that goes on; null: none
  std::filesystem::path checkpoint_folder;  // in checkpoint_storage; empty: the run has none there

  int world_size() const { return static_cast<int>(ranks.size()); }
  bool on_gpus() const { return request.slot_type == config::AgentSlotType::kCuda; }
};

// ConfigError if the experiment or the cluster is wrong, the program cannot be found, or the slots never fit. Asks no
// other host. Places the ranks as if all slots were free.
LaunchPlan make_launch_plan(const LaunchRequest& request, const Variables& variables);

// Places the ranks on these slots, in this order.
void assign_slots(LaunchPlan& plan, const scheduler::Claim& claim);

// ConfigError if the plan is correct, but nothing can start its ranks.
void check_can_start(const LaunchPlan& plan);

Json to_json(const LaunchPlan& plan);
// Returns a text for people: the ranks and their places.
std::string render_plan(const LaunchPlan& plan);

// Returns the variables of a rank's process besides its identity: as many threads as it has cores unless the user sets
// a number, the experiment's own variables, and the library path.
Variables thread_variables(const LaunchPlan& plan, const RankPlacement& rank, const Variables& variables);

}  // namespace dtrain::run
