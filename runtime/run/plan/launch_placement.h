// The part of a launch's plan that says where the ranks go: cluster, request, placement. Plain functions; one thread.
#pragma once

#include <filesystem>

#include "plan/launch_plan.h"

namespace dtrain::run {

// Finds the cluster and places the ranks on it as if it were free: fills in cluster, request, launcher, placement and
// ranks of a plan that has its experiment. ConfigError where the cluster is wrong or the slots fit nowhere.
void place_ranks(LaunchPlan& plan, const std::filesystem::path& cluster_file, const Variables& variables);

// What the experiment asks of the scheduler.
scheduler::SlotRequest slot_request(const config::Experiment& experiment, const config::Scheduler& scheduler);

// Warns where there are more slots, but no larger batch, than without the overrides or than in the last run of this
// name under ./runs; empty: nothing to say.
std::string scaling_advice(const config::Experiment& experiment, bool has_overrides);

}  // namespace dtrain::run
