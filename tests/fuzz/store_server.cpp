// What the store of rank 0 hears from a connection: from its first byte on (bit 0 of the first byte clear), or after
// the client has validated. Another client is served before and after.
#include <stdexcept>

#include "control_peer.h"
#include "dtrain/comm/rendezvous_store.h"
#include "store/protocol.h"

void dtrain::fuzz::store_server(Input input) {
  if (input.empty()) return;
  const auto server = comm::RendezvousStore::open({.address = "127.0.0.1", .serves = true});
  server->set("k", "v");
  auto peer = ControlPeer::connect(server->port());
  if ((input[0] & 1) != 0) peer.send(std::string(1, '\0') + comm::store::integer_bytes(comm::store::kMagic, 4));
  peer.send(std::string(input.begin() + 1, input.end()));
  peer.end();
  const auto rank = comm::RendezvousStore::open({.address = "127.0.0.1", .port = server->port()});
  if (rank->get("k") != "v") throw std::runtime_error("the value of another client");
}
