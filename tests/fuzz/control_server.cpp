// What rank 0 hears from a connection: of a stranger (bits 0 and 1 of the first byte clear), or of rank 1 once it has
// proved that it knows the secret; raw bytes, or one frame a line. A stranger's lines may use @nonce and @proof, so
// that some of the hellos are nearly right.
#include "control_peer.h"

namespace {

void replace(std::string& text, std::string_view what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

void dtrain::fuzz::control_server(Input input) {
  if (input.empty()) return;
  const bool authenticate = (input[0] & 1) != 0;
  const bool lines_are_frames = (input[0] & 2) != 0;
  const auto options = control_options(0);
  comm::ControlEndpoint endpoint;
  const auto server = comm::ControlPlane::serve(options, {}, &endpoint);
  server->set("k", "v");

  auto peer = ControlPeer::connect(endpoint.port);
  const auto challenge = peer.receive();
  const auto nonce = challenge.value().at("nonce").get<std::string>();
  const auto proof = comm::client_proof(options.secret, handshake(nonce, "00"));
  std::string text(input.begin() + 1, input.end());
  if (authenticate) {
    peer.send_frame({{"t", "hello"},
                     {"protocol", 1},
                     {"session", "fuzz"},
                     {"generation", 0},
                     {"rank", 1},
                     {"size", 2},
                     {"pid", 1},
                     {"nonce", "00"},
                     {"proof", proof}});
    (void)peer.receive().value();  // the welcome
  } else if (lines_are_frames) {
    replace(text, "@nonce", nonce);
    replace(text, "@proof", proof);
  }
  peer.send(to_bytes({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, lines_are_frames));
  peer.end();
}
