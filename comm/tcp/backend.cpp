// The backend over TCP.
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/backends.h"
#include "hierarchical/topology.h"
#include "messages/message_operation.h"
#include "messages/message_transport.h"
#include "tcp/event_loop.h"
#include "tcp/meeting.h"
#include "tcp/tcp_transport.h"

namespace dtrain::comm {
namespace {

std::unique_ptr<Communicator> make_tcp_communicator(const BackendParts& parts) {
  const World& world = parts.control.world();
  auto loop = std::make_unique<EventLoop>();
  TcpTransport::Options options{.message_bytes = longest_message(world.size),
                                .members = parts.members,
                                .loop = loop.get(),
                                .sockets = connect_to_all_ranks(parts)};
  MessageSetup setup{.backend = "tcp",
                     .shared = std::make_shared<MessageShared>(std::move(loop)),
                     .members = parts.members,
                     .rank = world.rank,
                     .options = parts.options};
  options.has_ended = [shared = setup.shared.get()] { return shared->given_up.load(); };  // it outlives the transport
  setup.transport = std::make_unique<TcpTransport>(std::move(options));
  return make_message_communicator(std::move(setup), parts.control);
}

}  // namespace

std::unique_ptr<Communicator> TcpBackend::make(const BackendParts& parts) const {
  const auto over_shm = [&](ControlPlane& some, const std::vector<int>& ranks) {
    return ShmBackend().make({some, numbers_in_run(ranks, parts.members), parts.mpi, parts.address, parts.options});
  };
  const auto over_tcp = [&](ControlPlane& some, const std::vector<int>& ranks) {
    return make_tcp_communicator({some, numbers_in_run(ranks, parts.members), parts.mpi, parts.address, parts.options});
  };
  const Placement placement(parts.control.gather("comm/tcp/hosts", parts.control.world().host));
  if (placement.most == 1 && placement.ranks() > 1) return make_tcp_communicator(parts);
  return make_hierarchical_communicator(parts.control, over_shm, over_tcp, parts.options, kWord);
}

}  // namespace dtrain::comm
