// The limits of the machines that a launch uses, for its plan: remembered, or measured before its ranks start. One
// thread; takes seconds where a machine is not known yet.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "network/network_choice.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Sets the threads of the ranks by the remembered limits of this host, and gives the reason in the plan. Measures
// nothing.
void recall_threads(LaunchPlan& plan, const Variables& variables);

// Fills in plan.limits for ranks on cores, once they have their slots. All hosts measure at once. `say` gets lines for
// the screen. A host whose limits cannot be had becomes a warning of the plan. Sets the threads of ranks whose cores
// have several CPUs by the measured limits.
void settle_limits(LaunchPlan& plan, const RemoteCommand& remote, const Variables& variables,
                   const std::function<void(const std::string&)>& say);

}  // namespace dtrain::run
