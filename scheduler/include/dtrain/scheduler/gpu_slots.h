// The slots of this machine's GPUs, and the cores that belong to each. One thread; looking at GPUs may block if a
// driver hangs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::scheduler {

// Makes one slot for each healthy GPU that CUDA_VISIBLE_DEVICES (of `variables`) shows, in its order, numbered from 0.
// Each slot has a share of the cores near its GPU (those of its NUMA node). These cores are divided evenly among all
// GPUs near them, visible or not, so launches on different GPUs get different cores. After these slots follow the GPUs
// that cannot be slots, numbered -1, each with its problem.
std::vector<ClusterSlot> find_gpu_slots(const Machine& machine, const std::map<std::string, std::string>& variables,
                                        std::vector<std::string>& warnings);

}  // namespace dtrain::scheduler
