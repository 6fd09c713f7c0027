// Makes a communicator whose collectives travel as messages. Its reductions are made by our own code, in rank order:
// the transport does not change their bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "messages/message_shared.h"
#include "messages/message_transport.h"

namespace dtrain::comm {

struct MessageSetup {
  std::string backend;                    // its name: "mpi"
  std::shared_ptr<MessageShared> shared;  // shared by all communicators of the transport
  std::unique_ptr<MessageTransport> transport;
  int number = 0;            // number among the communicators of the transport; chooses the tags
  std::vector<int> members;  // ranks of the job, by rank
  int rank = 0;
  std::function<std::string(int rank)> peer_state{};  // make_message_communicator() sets it
  CommunicatorOptions options;
};

// Collective over `control`, which must outlive the communicator.
std::unique_ptr<Communicator> make_message_communicator(MessageSetup setup, ControlPlane& control);

}  // namespace dtrain::comm
