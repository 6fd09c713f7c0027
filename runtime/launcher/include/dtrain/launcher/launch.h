// `dtrain launch`: starts one process for each slot and watches them until the last has ended. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/mock.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::launcher {

struct LaunchRequest {
  std::filesystem::path experiment_file;
  std::filesystem::path contents;      // read instead of experiment_file; empty: that file itself
  std::string continue_run;            // --continue: the run that goes on, as find_run() names it; empty: a new one
  std::vector<std::string> overrides;  // --set
  std::filesystem::path cluster;       // --cluster; empty: looked for
  std::filesystem::path run_dir;       // empty: the next one under runs/
  rank::Mock mock;
  bool evaluates = false;                     // one validation with initial_weights, and no training
  std::filesystem::path predictions;          // with `evaluates`: the model's outputs are written there; empty: metrics
  std::filesystem::path orders;               // with `evaluates`: names the checkpoints to be validated; empty: none
  std::int64_t prediction_batch = 0;          // with `predictions`: samples of a batch; 0: those of a slot
  bool dry_run = false;                       // print the plan, start nothing
  bool detach = false;                        // run without the terminal once the task is in the ledger
  bool is_trial = false;                      // a short run for another launch; ends with that launch, writes no report
  bool json = false;                          // with dry_run: the plan as JSON
  std::optional<scheduler::Machine> machine;  // a machine that tests pretend to have; empty: this machine
};

// Returns the number of ranks that Kubernetes asks for in all pods of the job (PET_NNODES, PET_NPROC_PER_NODE); 1
// outside of one. ConfigError: the variables are wrong.
int ranks_of_pods();

// Starts the ranks of an experiment. If several hosts each start their own ranks (PET_NNODES), starts only those of
// this host.
//
// Returns the exit code: 0 done, 1 the run failed, 75 stopped by SIGTERM with a durable checkpoint, 130 interrupted.
// ConfigError (exit code 2) before any rank starts.
ExitCode launch(const LaunchRequest& request);

// launch() on one of several hosts, each of which has such a process (`node`). Keeps this host's ranks until the run
// has ended: starts them, and starts them again together with those of the other hosts after a failure that may pass,
// from the run's newest checkpoint. Returns the exit code, as launch() does. ConfigError before any rank starts.
// CommError: the other hosts are not there.
ExitCode launch_node(const LaunchRequest& request, const rank::NodeEnvironment& node, const rank::Variables& variables);

// The files that an experiment file names.

// Returns one line for each named file that is missing on this machine (program, model file, data files of a `model:`
// experiment, initial weights), and for a folder for checkpoints that cannot be written.
std::vector<std::string> find_missing_files(const config::Experiment& experiment);

// The cluster that a command of dtrain uses. Any thread; looking at GPUs may take half a minute if a driver hangs.

// scheduler::find_cluster() with this process's environment.
scheduler::ClusterAgents find_cluster(const std::filesystem::path& given);

}  // namespace dtrain::launcher
