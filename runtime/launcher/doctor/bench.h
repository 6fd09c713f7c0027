// `dtrain doctor --bench`: the limits of this machine, for people and for programs. Plain functions; one thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "calibration/machine_limits.h"
#include "doctor/finding.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::run {

// Returns the ranks that fill this machine: one on each of its slots, or on each core if its slots are GPUs.
RanksOfHost ranks_to_bench(const std::optional<scheduler::ClusterAgents>& cluster);

// Returns a table for each setting; empty: nothing was measured.
std::string render_limits(std::span<const profile::RankLimits> limits);

// Returns the cost of the default path of float32 matrix products, in percent of the fast path's rate; empty: not
// known, or there is only one path.
std::optional<double> matmul_cost(const profile::RankLimits& limits);

// Finds how this processor gets the fast path of float32 matrix products; none if libtorch takes it by itself.
std::optional<Finding> check_matmul(const Variables& variables);
std::optional<Finding> judge_matmul(bool has_slow_path, std::span<const profile::RankLimits> known);

}  // namespace dtrain::run
