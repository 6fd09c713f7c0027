// The cluster that a command of dtrain is about. Any thread; looking at GPUs may block where a driver hangs.
#pragma once

#include <filesystem>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::run {

// As scheduler::find_cluster, with this process's environment.
scheduler::ClusterAgents find_cluster(const std::filesystem::path& given);

}  // namespace dtrain::run
