// The part of a launch's plan that says which network its ranks talk over. One thread; asks the hosts, for seconds.
#pragma once

#include "network/choose_network.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// Once the ranks have their hosts: where there are several, chooses their network, which from then on is the plan's
// `network` and the interface that its cluster names, and adds the warning that several are common. ConfigError as of
// choose_network().
void settle_network(LaunchPlan& plan, const RemoteCommand& remote);

}  // namespace dtrain::run
