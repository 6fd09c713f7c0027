// The places of a launch's ranks: cluster, request, placement. Plain functions; one thread.
#pragma once

#include <filesystem>

#include "plan/launch_plan.h"

namespace dtrain::run {

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
