// `dtrain launch` and `dtrain run` on one of several hosts that Kubernetes, or a user, starts it on (PET_*): this
// host's ranks, which join those of the other hosts. There is no launcher for all hosts. Rank 0 makes the run's folder.
#pragma once

#include "dtrain/launcher/launch.h"
#include "dtrain/rank/environment.h"

namespace dtrain::run {

// Starts this host's ranks and waits until they have ended. SIGTERM and SIGINT are passed on. When one fails, the
// others of this host get some time to stop by themselves, and are then ended. Returns the exit code, as launch() does.
// ConfigError before any rank starts.
ExitCode launch_node(const LaunchRequest& request, const NodeEnvironment& node, const Variables& variables);

}  // namespace dtrain::run
