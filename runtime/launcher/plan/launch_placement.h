// Ranks of a launch's plan on GPUs: whether they go there, the GPU of each rank, and the variables of its process.
// Plain functions; one thread. Looking at GPUs waits for the driver, with a deadline.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/launch_plan.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
