// The cluster that a command of dtrain uses. Any thread; looking at GPUs may take half a minute if a driver hangs.
#pragma once

#include <filesystem>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::run {

// scheduler::find_cluster() with this process's environment.
scheduler::ClusterAgents find_cluster(const std::filesystem::path& given);

}  // namespace dtrain::run
