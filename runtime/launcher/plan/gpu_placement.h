// Ranks of a launch's plan on GPUs: whether they go there, the GPU of each rank, and the variables of its process.
// Plain functions; one thread. Looking at GPUs waits for the driver, with a deadline.
#pragma once

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

}  // namespace dtrain::run
