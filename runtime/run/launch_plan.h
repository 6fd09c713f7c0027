// What a launch will do, decided and checked before anything starts. Plain values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/experiment.h"
#include "dtrain/run/launch.h"
#include "dtrain/scheduler/batch_split.h"
#include "environment.h"
#include "plan_file.h"

namespace dtrain::run {

struct LaunchPlan {
  config::Experiment experiment;
  std::vector<std::string> overrides;
  std::string host;
  std::vector<std::string> command;  // of every rank
  std::string library_path;          // its LD_LIBRARY_PATH; empty: as it is
  scheduler::BatchSplit split;
  std::vector<RankPlacement> ranks;
  std::vector<std::string> warnings;

  int world_size() const { return static_cast<int>(ranks.size()); }
};

// ConfigError when the experiment is wrong or its program cannot be found.
LaunchPlan make_launch_plan(const LaunchRequest& request, const Variables& variables);

Json to_json(const LaunchPlan& plan);
// For people: what will run where.
std::string render_plan(const LaunchPlan& plan);

// What a rank's process gets beside its identity: threads as many as its cores, unless the user says otherwise.
Variables thread_variables(const LaunchPlan& plan, const RankPlacement& rank, const Variables& variables);

}  // namespace dtrain::run
