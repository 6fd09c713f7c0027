// What rank 0 hears from a connection: of a stranger (bit 0 of the first byte clear), or of rank 1 once it has proved
// that it knows the secret; raw bytes, or a frame a line (bit 1), which rank 1 seals.
#include "control_peer.h"
#include "dtrain/base/text.h"

void dtrain::fuzz::control_server(Input input) {
  if (input.empty()) return;
  const bool authenticate = (input[0] & 1) != 0;
  const bool lines_are_frames = (input[0] & 2) != 0;
  const auto options = control_options(0);
  comm::ControlEndpoint endpoint;
  const auto server = comm::ControlPlane::serve(options, {}, &endpoint);
  server->set("k", "v");

  auto peer = ControlPeer::connect(endpoint.port);
  if (authenticate) {
    if (!peer.prove(comm::Handshake::connecting(options.secret, introduction(1)))) throw CommError("rank 1 is refused");
  } else {
    (void)peer.receive_greeting().value();
  }
  const std::string text(input.begin() + 1, input.end());
  if (!lines_are_frames) {
    peer.send(text);
  } else {
    for (const auto& line : dtrain::split(text, '\n'))
      authenticate ? peer.send_sealed(line) : peer.send(greeting(line));
  }
  peer.end();
}
