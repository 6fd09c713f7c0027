// Chooses the network of a launch's plan. One thread; asks the hosts, which takes seconds.
#pragma once

#include "network/choose_network.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Called once the ranks have their hosts. If there are several, chooses their network, sets it as the plan's `network`
// and as its cluster's interface, and adds a warning if several networks are common. ConfigError as choose_network().
void settle_network(LaunchPlan& plan, const RemoteCommand& remote);

}  // namespace dtrain::run
