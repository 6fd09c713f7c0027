// Checks of `dtrain doctor` on the other hosts of a cluster, over its remote shell: whether they can be reached, the
// results of their own checks, clocks, the run folder, and the network between them. One thread; takes seconds.
#pragma once

#include <filesystem>
#include <vector>

#include "doctor/finding.h"
#include "dtrain/base/clock.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "network/choose_network.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
