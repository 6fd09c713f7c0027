// A launch is four values. Each is made by one function, which nothing changes afterwards:
//   request   what is asked for: the command line, the run that goes on, the number of ranks
//             complete_request()     plan/launch_plan.cpp
//   plan      what is decided and checked before anything starts
//             make_launch_plan()     plan/launch_plan.cpp
//   placed    the plan with the slots of its ranks, the network between their hosts, and their threads
//             place_launch()         plan/launch_placement.cpp
//   running   an attempt at the placed launch: its processes, and the objects to which they report
//             run_attempts()         launch/attempts.cpp
// This header declares the first three. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/config/batch_split.h"
#include "dtrain/config/experiment.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/profile/rank_limits.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/resume.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "dtrain/scheduler/ledger.h"
#include "network/network_choice.h"

namespace dtrain::launcher {

// The division of a machine's cores among ranks (resources.slots_per_trial: auto): the divisions that come into
// question, and the one that was chosen, with its figures.

// A number of ranks, and the result of its trial.
struct DivisionTrial {
  int slots = 0;
  std::string text;        // "2 ranks x 1 core"
  double step_ms = 0;      // of a global batch: the median, of the slowest rank; 0: not measured
  std::int64_t steps = 0;  // the number of steps behind the median
  std::string failure;     // the reason why the trial is left out; empty: it counts
};

struct Division {
  int slots = 0;                      // chosen; 0: a launch has to measure first
  std::string why;                    // the reason for this number, if no trial decides
  bool remembered = false;            // an earlier launch has measured
  std::vector<DivisionTrial> trials;  // ascending by slots; empty: no trial decides
};

// Returns the divisions of an agent's cores to try: one rank, one per NUMA node, one per core, and divisors of the
// number of cores between, each at least twice the one before. Only numbers of ranks that divide the global batch
// evenly, and at most `most` ranks (0: no limit); one rank is always among them.
std::vector<DivisionTrial> divisions_to_try(const scheduler::ClusterAgent& agent, std::int64_t global_batch_size,
                                            int most);

// Returns the fastest measured trial; of equally fast trials, the one with the fewest ranks. Null: all failed.
const DivisionTrial* fastest_of(const std::vector<DivisionTrial>& trials);

Json to_json(const Division& division);
Division division_of(const Json& json);  // Json::exception if it is malformed

// Returns the rows of the printed plan.
std::string render_division(const Division& division);

// True if length and batch size are those of a script's own loop (`dtrain run`); global_batch_size is its number of
// ranks.
bool is_of_script(const config::Experiment& experiment);

struct CompleteRequest : LaunchRequest {
  std::optional<rank::ContinuedRun> continued;  // the run that goes on; the request has its files and overrides
  std::optional<Division> division;             // with slots_per_trial: auto, the choice of the number of ranks
};

// Completes the request of a command line: from the run that goes on, whose overrides and cluster file it has unless it
// has its own, and with resources.slots_per_trial: auto by the number of ranks, which is one more override, so that the
// plan, a continuation and repetitions of the run have it. That number is remembered, or found by trials, which take
// some seconds each; a dry run tries nothing and takes the first one if nothing is remembered. Empty: a signal has
// stopped the trials. ConfigError: there is no such run, or auto cannot choose here; Error: all trials failed.
std::optional<CompleteRequest> complete_request(const LaunchRequest& given, const rank::Variables& variables);
// With resources.slots_per_trial: auto, sets the request's division, and its number of ranks as an override. False: a
// signal has stopped the trials.
bool choose_division(CompleteRequest& request, const config::Experiment& experiment, const rank::Variables& variables);

// The slots that a launch asks for.
struct ChosenSlots {
  scheduler::ClusterAgents cluster;
  scheduler::SlotRequest request;
  scheduler::Claim first_slots;  // of the ranks, if all slots were free
  std::string why_no_cuda;       // if slot_type: auto would use GPUs, but libtorch cannot; else empty

  const config::Launcher& launcher() const { return cluster.cluster.launcher; }  // of the ranks
  const scheduler::ClusterAgent* find_agent(const std::string& id) const;        // null: there is none
  bool on_gpus() const { return request.slot_type == config::AgentSlotType::kCuda; }
};

struct LaunchPlan : ChosenSlots {
  CompleteRequest asked;
  config::Experiment experiment;
  std::string host;
  std::vector<std::string> command;  // of every rank
  std::string library_path;          // its LD_LIBRARY_PATH; empty: unchanged
  config::BatchSplit split;
  std::string unused_gpus;  // of this machine, for people; empty: there are none
  std::vector<std::string> warnings;
};

// Returns the ranks' options for a request that evaluates.
std::vector<std::string> evaluating_options(const LaunchRequest& request);
// ConfigError if the experiment or the cluster is wrong, the program cannot be found, the slots never fit, or the run
// cannot go on with them. Asks no other host.
LaunchPlan make_launch_plan(const CompleteRequest& request, const rank::Variables& variables);

// plan.json of a run has these keys besides the plan's.
struct KeysOfRun {
  Json before;                              // plan_before() of a run that goes on; null: none
  std::filesystem::path checkpoint_folder;  // in checkpoint_storage; empty: the run has none there
};

struct PlacedLaunch : LaunchPlan {
  KeysOfRun of_run;
  scheduler::Placement placement;
  std::vector<rank::RankPlacement> ranks;             // the same, rank by rank
  NetworkChoice network;                              // between the hosts; no networks: all ranks are on one host
  std::map<std::string, profile::RankLimits> limits;  // of each host that is known; nothing on GPUs
  std::map<std::string, std::vector<profile::GpuLimits>> gpu_limits;  // of each host's kinds of GPUs, likewise
  std::string why_threads;                                            // the reason for the ranks' number of threads

  int world_size() const { return static_cast<int>(ranks.size()); }
  bool is_on_this_host() const;  // every rank is
  // Returns the interface or network of the ranks; "auto": none is chosen.
  std::string network_interface() const {
    return network.value().empty() ? cluster.cluster.network_interface : network.value();
  }
};

// How far a placement looks at the machines of its ranks.
struct LookAtHosts {
  RemoteCommand remote;                         // to other hosts; empty: it looks at this machine's GPUs alone
  std::function<void(const std::string&)> say;  // gets lines for the screen
};

// Places the ranks on these slots, in this order. Without `look` it looks nowhere and measures nothing: for people and
// for checks. With it, it looks whether the GPUs of this machine are free, and with its `remote` chooses the network of
// several hosts and measures machines whose limits are not known yet, which takes seconds. What it warns of comes after
// the plan's warnings. ConfigError as choose_network(), and if a GPU admits no second process.
PlacedLaunch place_launch(const LaunchPlan& plan, const scheduler::Claim& claim, const rank::Variables& variables,
                          const LookAtHosts* look = nullptr, const KeysOfRun& of_run = {});

// ConfigError if the plan is correct, but nothing can start its ranks.
void check_can_start(const PlacedLaunch& placed);

Json to_json(const PlacedLaunch& placed);
// Returns a text for people: the ranks and their places.
std::string render_plan(const PlacedLaunch& placed);

// Returns the variables of a rank's process besides its identity: as many threads as it has cores unless the user sets
// a number, the experiment's own variables, and the library path.
rank::Variables thread_variables(const LaunchPlan& plan, const rank::RankPlacement& rank,
                                 const rank::Variables& variables);

// Returns the warning about parameters of rules that judge only GPUs; empty: all are at their defaults.
std::string unused_rules_warning(const config::Experiment& experiment);

// Returns the GPUs of this machine, with the variables that decide which of them are visible. Waits for the driver,
// with a deadline.
scheduler::Machine machine_with_gpus();

// Returns variables that make the GPUs of this host's ranks visible to each of them, in the order of local ranks.
rank::Variables gpu_variables(const PlacedLaunch& placed);

// Returns the value of DTRAIN_GPUS for ranks on several hosts: for each rank the number of its host and its GPU, by
// UUID, or if that is not known by its place among the usable GPUs of its host: "0:GPU-…,0:GPU-…,1:0,1:1".
std::string gpus_variable(const PlacedLaunch& placed);

// Parts of the plan and of the placed launch, for the functions that make these.

// Finds the cluster and the slots of the ranks as if all were free. `machine` stands in for this machine; empty: this
// machine itself. ConfigError if the cluster is wrong or the slots never fit.
ChosenSlots choose_slots(const config::Experiment& experiment, const std::filesystem::path& cluster_file,
                         const rank::Variables& variables, const std::optional<scheduler::Machine>& machine);

// Returns the ranks on these slots, in this order.
std::vector<rank::RankPlacement> ranks_on(const LaunchPlan& plan, const scheduler::Claim& claim);

// Sets the threads of the ranks by the remembered limits of this host, and gives the reason. Measures nothing.
void recall_threads(PlacedLaunch& plan, const rank::Variables& variables);

// Fills in the limits for ranks on cores or on GPUs, remembered or measured, which takes seconds where a machine or a
// kind of GPU is not known yet: all hosts measure at once. `say` gets lines for the screen. A host whose limits cannot
// be had becomes a warning. Sets the threads of ranks whose cores have several CPUs by these limits.
void settle_limits(PlacedLaunch& plan, const RemoteCommand& remote, const rank::Variables& variables,
                   const std::function<void(const std::string&)>& say);

}  // namespace dtrain::launcher
