// What `dtrain doctor` finds out about the other hosts of a cluster, over its remote shell: whether they can be
// reached, what their own checks say, their clocks, the run folder, and the network between them. One thread; seconds.
#pragma once

#include <filesystem>
#include <vector>

#include "doctor/finding.h"
#include "dtrain/base/clock.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "network/choose_network.h"

namespace dtrain::run {

// A clock's difference from this one's, and how far off that may be.
struct ClockOffset {
  Nanoseconds offset{0};
  Nanoseconds error{0};
};
// The best of some readings: of each, this clock before and after, and theirs in between.
struct ClockReading {
  Nanoseconds before;
  Nanoseconds theirs;
  Nanoseconds after;
};
ClockOffset clock_offset(const std::vector<ClockReading>& readings);
Finding judge_clock(const ClockOffset& clock);

// One entry a host that is not this one; `folder` is where runs are written. A host that two agents are on is there
// once.
std::vector<HostFindings> check_other_hosts(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote,
                                            const std::filesystem::path& folder);

// Of all hosts together; nothing where this one is the only one and no interface is asked for.
std::vector<Finding> check_network(const scheduler::ClusterAgents& cluster, const RemoteCommand& remote);

}  // namespace dtrain::run
