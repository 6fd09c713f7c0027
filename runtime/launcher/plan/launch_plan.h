// The run's plan, decided and checked before anything starts. Plain values.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/batch_split.h"
#include "dtrain/config/experiment.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/profile/rank_limits.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "dtrain/scheduler/ledger.h"
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
  config::BatchSplit split;
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

// Returns the warning about parameters of rules that judge only GPUs; empty: all are at their defaults.
std::string unused_rules_warning(const config::Experiment& experiment);

// Ranks of a launch's plan on GPUs: whether they go there, the GPU of each rank, and the variables of its process.
// Plain functions; one thread. Looking at GPUs waits for the driver, with a deadline.

// Returns the GPUs of this machine, with the variables that decide which of them are visible.
scheduler::Machine machine_with_gpus();

// Returns the type of slots that the experiment asks for.
config::AgentSlotType asked_slot_type(const config::Experiment& experiment);
// Returns the type of the slots on which the experiment is placed. auto: kCuda if its resource pool has agents of GPUs,
// else kCpu.
config::AgentSlotType decide_slot_type(const config::Experiment& experiment, const scheduler::ClusterAgents& cluster);

// ConfigError if the experiment has keys that the devices chosen by slot_type: auto do not support.
void check_devices_support(const config::Experiment& experiment, bool on_gpus);

// Returns lines that are added to the refusal of an experiment that never fits on GPU slots: the warnings of the
// cluster, or that this machine has no visible GPU.
std::string refusal_on_gpus(const LaunchPlan& plan);

// Warns of GPUs of this machine on which other processes compute. ConfigError if such a GPU admits only one process.
// Called once the ranks have their slots. With other launchers than local the ranks look themselves, each on its host.
void check_gpus_are_free(LaunchPlan& plan);

// Returns variables that make the GPUs of this host's ranks visible to each of them, in the order of local ranks.
Variables gpu_variables(const LaunchPlan& plan);

// Returns the value of DTRAIN_GPUS for ranks on several hosts: for each rank the number of its host and its GPU, by
// UUID, or if that is not known by its place among the usable GPUs of its host: "0:GPU-…,0:GPU-…,1:0,1:1".
std::string gpus_variable(const LaunchPlan& plan);

// The places of a launch's ranks: cluster, request, placement. Plain functions; one thread.

// Finds the cluster and places the ranks as if all slots were free. Fills in cluster, request, launcher, placement and
// ranks of a plan that has its experiment. `machine` stands in for this machine; empty: this machine itself.
// ConfigError if the cluster is wrong or the slots never fit.
void place_ranks(LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables,
                 const std::optional<scheduler::Machine>& machine);

// Returns the experiment's request to the scheduler, for slots of this type.
scheduler::SlotRequest slot_request(const config::Experiment& experiment, const config::Scheduler& scheduler,
                                    config::AgentSlotType type);

// True if length and batch size are those of a script's own loop (`dtrain run`).
bool is_of_script(const config::Experiment& experiment);

// Returns a warning if there are more slots but no larger batch than without the overrides, or than in the last run of
// this name under ./runs; else empty.
std::string scaling_advice(const LaunchPlan& plan, bool has_overrides);

// The limits of the machines that a launch uses, for its plan: remembered, or measured before its ranks start. One
// thread; takes seconds where a machine is not known yet.

// Sets the threads of the ranks by the remembered limits of this host, and gives the reason in the plan. Measures
// nothing.
void recall_threads(LaunchPlan& plan, const Variables& variables);

// Fills in plan.limits for ranks on cores, once they have their slots. All hosts measure at once. `say` gets lines for
// the screen. A host whose limits cannot be had becomes a warning of the plan. Sets the threads of ranks whose cores
// have several CPUs by the measured limits.
void settle_limits(LaunchPlan& plan, const RemoteCommand& remote, const Variables& variables,
                   const std::function<void(const std::string&)>& say);

}  // namespace dtrain::run
