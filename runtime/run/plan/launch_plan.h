// What a launch will do, decided and checked before anything starts. Plain values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/experiment.h"
#include "dtrain/run/launch.h"
#include "dtrain/scheduler/batch_split.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "dtrain/scheduler/task.h"
#include "environment.h"
#include "folder/plan_file.h"
#include "network/network_choice.h"

namespace dtrain::run {

struct LaunchPlan {
  config::Experiment experiment;
  std::vector<std::string> overrides;
  Mock mock;
  std::string host;
  std::vector<std::string> command;  // of every rank
  std::string library_path;          // its LD_LIBRARY_PATH; empty: as it is
  scheduler::BatchSplit split;
  scheduler::ClusterAgents cluster;
  scheduler::SlotRequest request;
  config::Launcher launcher;         // what is to start the ranks
  scheduler::Placement placement;    // where they go if all is free, or once they have their slots
  std::vector<RankPlacement> ranks;  // the same, rank by rank
  NetworkChoice network;             // between the hosts; without networks: not asked, or all ranks are on one
  std::string unused_gpus;           // of this machine, for people; empty: there are none
  std::vector<std::string> warnings;

  int world_size() const { return static_cast<int>(ranks.size()); }
};

// ConfigError when the experiment or the cluster is wrong, the program cannot be found, or the slots fit nowhere. Asks
// no other host. The ranks are placed as if everything were free.
LaunchPlan make_launch_plan(const LaunchRequest& request, const Variables& variables);

// Places the ranks on these slots, in their order.
void assign_slots(LaunchPlan& plan, const scheduler::Claim& claim);

// ConfigError where the plan is right, but nothing can start its ranks.
void check_can_start(const LaunchPlan& plan);

Json to_json(const LaunchPlan& plan);
// For people: what will run where.
std::string render_plan(const LaunchPlan& plan);

// What a rank's process gets beside its identity: threads as many as its cores, unless the user says otherwise.
Variables thread_variables(const LaunchPlan& plan, const RankPlacement& rank, const Variables& variables);

}  // namespace dtrain::run
