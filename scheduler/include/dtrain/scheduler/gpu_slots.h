// The slots of this machine's GPUs, and the cores that belong to each. One thread; looking at GPUs may block where a
// driver hangs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::scheduler {

// A slot for each healthy GPU that CUDA_VISIBLE_DEVICES (of `variables`) leaves, in its order, numbered from 0. Each
// has its share of the cores near it (those of its NUMA node), which are divided evenly among all GPUs near the same
// cores, visible or not: so launches on different GPUs get different cores. Then the GPUs that are no slot, numbered
// -1, each with its problem.
std::vector<ClusterSlot> find_gpu_slots(const Machine& machine, const std::map<std::string, std::string>& variables,
                                        std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
