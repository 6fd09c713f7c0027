// A communicator for ranks on several hosts. It has two levels: a communicator among the ranks of each host (shared
// memory), and one among one rank of each host (MPI or gloo). Hosts may have different numbers of ranks, and ranks may
// be on hosts in any order.
//
// A reduction first sums each host's ranks in rank order, then the hosts in the order of their lowest ranks. Every rank
// gets the same bits. Between the levels and between hosts, narrow types are sent as float32; they are rounded once.
// There is no background thread: each call to issue, progress, test or wait advances the operations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Makes a communicator over `control`, whose rank i is rank members[i] of the run. Called two or three times for each
// level, in the same order by all members.
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(ControlPlane& control, const std::vector<int>& members)>;

// Collective over `control`, which must outlive the communicator. Ranks with equal World::host share a host. `local` is
// called on hosts with several ranks. If there are several hosts, the lowest rank of each calls `outer`. A failure of
// the run, and abort(), reach both levels. `name`: the result of Communicator::backend().
std::unique_ptr<Communicator> make_hierarchical_communicator(ControlPlane& control, const MakeCommunicator& local,
                                                             const MakeCommunicator& outer,
                                                             const CommunicatorOptions& options,
                                                             const std::string& name = "hierarchical");

}  // namespace dtrain::comm
