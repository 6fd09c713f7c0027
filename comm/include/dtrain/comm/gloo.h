// libtorch's gloo as a backend between hosts, for machines without MPI: ordinary TCP connections between the ranks. It
// is in a module of its own (libdtrain_comm_gloo.so) that is opened on demand and needs the libtorch, which every
// program that trains has loaded. If the module is requested but missing, an error says so.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Collective over `control`, which must outlive the communicator and whose rank i is rank members[i] of the run; errors
// name ranks by these numbers. Returns once all ranks are connected. `address`: this host's address, at which the other
// ranks reach it. Sums are made by dtrain in rank order, with the same bits as over MPI. Neither the sender nor the
// data is authenticated. CommError if the module is missing, or if a rank cannot be reached before the deadline.
std::unique_ptr<Communicator> make_gloo_communicator(ControlPlane& control, const std::vector<int>& members,
                                                     const std::string& address, const CommunicatorOptions& options);

}  // namespace dtrain::comm
