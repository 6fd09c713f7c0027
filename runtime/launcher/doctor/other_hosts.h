// Checks of `dtrain doctor` on the other hosts of a cluster, over its remote shell: whether they can be reached, the
// results of their own checks, clocks, the run folder, and the network between them. One thread; takes seconds.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "dtrain/base/clock.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "machine_limits.h"
#include "network/network_choice.h"

namespace dtrain::launcher {

// The difference of another host's clock from this one's, and its uncertainty.
struct ClockOffset {
  Nanoseconds offset{0};
  Nanoseconds error{0};
};
// One reading of the other clock, between two of this one's. clock_offset() uses the reading that took the shortest.
struct ClockReading {
  Nanoseconds before;
  Nanoseconds theirs;
  Nanoseconds after;
};
ClockOffset clock_offset(const std::vector<ClockReading>& readings);
Finding judge_clock(const ClockOffset& clock);

// Returns one entry for each other host, also if several agents are on it. `folder`: the folder of runs.
std::vector<HostFindings> check_other_hosts(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote,
                                            const std::filesystem::path& folder);

// Returns a finding for each network between the hosts. Empty: this host is the only one and no interface is wanted.
std::vector<Finding> check_network(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote);

// `dtrain doctor --bench`: the limits of this machine, for people and for programs. Plain functions; one thread.

// Returns the ranks that fill this machine: one on each of its slots, or on each core if its slots are GPUs.
RanksOfHost ranks_to_bench(const std::optional<scheduler::ClusterAgents>& cluster);

// Returns a table for each setting; empty: nothing was measured.
std::string render_limits(std::span<const profile::RankLimits> limits);

// Returns the cost of the default path of float32 matrix products, in percent of the fast path's rate; empty: not
// known, or there is only one path.
std::optional<double> matmul_cost(const profile::RankLimits& limits);

// Finds how this processor gets the fast path of float32 matrix products; none if libtorch takes it by itself.
std::optional<Finding> check_matmul(const rank::Variables& variables);
std::optional<Finding> judge_matmul(bool has_slow_path, std::span<const profile::RankLimits> known);

}  // namespace dtrain::launcher
