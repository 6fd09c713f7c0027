// The parameters of communicators of all backends, the communicator of one host and that of several hosts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

class Arena;   // dtrain/comm/arena.h
class MpiJob;  // dtrain/comm/mpi.h

struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};    // deadline of every wait
  std::chrono::milliseconds warn_after{30'000};  // a wait that takes longer logs a warning
  Logger log;
  Security security = Security::kProof;  // of connections between hosts that the backend makes itself
  // Called again and again by a thread that waits in the communicator, on that thread, so that operations elsewhere
  // which need the thread go on: ranks may then wait for the operations of several communicators in any order. It may
  // call progress() and test() of all of them, this one included, but must neither wait nor throw. Returns true while
  // something elsewhere is outstanding; the wait then sleeps for 0.2 ms at a time at most. "nccl" does not call it.
  std::function<bool()> while_waiting{};
  // Registered memory of the ranks of a host, the same on all of them; null: none. Used where ranks share memory.
  std::shared_ptr<Arena> arena{};
};

// The parameters from which a backend makes a communicator (dtrain/comm/backend_list.h).
struct BackendParts {
  ControlPlane& control;     // outlives the communicator; its failures abort it
  std::vector<int> members;  // rank i of `control` is rank members[i] of the run; errors name it so
  MpiJob* mpi = nullptr;     // not null if the backend needs MPI; outlives the communicator
  std::string address;       // of this host, for connections from other hosts; empty: none needed
  CommunicatorOptions options;
};

// Makes the communicator of processes of one host, which share memory. Collective over `control`. All its ranks must be
// on one host, and it must outlive the communicator. A failure that it reports aborts the communicator. Error messages
// name rank i by members[i], its number in the run; without members, by i.
std::unique_ptr<Communicator> make_shm_communicator(ControlPlane& control, const CommunicatorOptions& options,
                                                    const std::vector<int>& members = {});

// Makes a communicator over `control`, whose rank i is rank members[i] of the control plane of both levels. Called two
// or three times for each level, in the same order by all members.
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(ControlPlane& control, const std::vector<int>& members)>;

// A communicator for ranks on several hosts. It has two levels: a communicator among the ranks of each host (shared
// memory), and one among one rank of each host (MPI or TCP). Hosts may have different numbers of ranks, and ranks may
// be on hosts in any order.
//
// A reduction first sums each host's ranks in rank order, then the hosts in the order of their lowest ranks. Every rank
// gets the same bits. Between the levels and between hosts, narrow types are sent as float32; they are rounded once.
// There is no background thread: each call to issue, progress, test or wait advances the operations.
//
// Collective over `control`, which must outlive the communicator. Ranks with equal World::host share a host. `local` is
// called on hosts with several ranks. If there are several hosts, the lowest rank of each calls `outer`. A failure of
// the run, and abort(), reach both levels. `name`: the result of Communicator::backend().
std::unique_ptr<Communicator> make_hierarchical_communicator(ControlPlane& control, const MakeCommunicator& local,
                                                             const MakeCommunicator& outer,
                                                             const CommunicatorOptions& options,
                                                             const std::string& name = "hierarchical");

}  // namespace dtrain::comm
