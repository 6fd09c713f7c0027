// What rank 1 hears from what it takes for rank 0: an impostor's words (bit 0 of the first byte clear), or those of a
// rank 0 that knows the secret, while rank 1 waits in get() and gather(); raw bytes, or one frame a line (bit 1).
#include <thread>

#include "control_peer.h"
#include "dtrain/base/error.h"

namespace dtrain::fuzz {

namespace {

void speak(const Listener& listener, bool authenticate, const std::string& bytes) {
  auto peer = listener.accept();
  if (authenticate) {
    peer.send_frame({{"t", "challenge"}, {"protocol", 1}, {"nonce", "00"}});
    const auto hello = peer.receive().value();
    const auto proof =
        comm::server_proof(control_options(0).secret, handshake("00", hello.at("nonce").get<std::string>()));
    peer.send_frame({{"t", "welcome"}, {"proof", proof}, {"pid", 1}});
    // Rank 1 waits for its gather from here on.
    for (auto message = peer.receive(); message && message->at("t") != "gather"; message = peer.receive()) {
    }
  }
  peer.send(bytes);
  peer.send(std::string(4, '\0'));  // a frame without a message: rank 1 gives up instead of connecting again
  peer.end();
}

}  // namespace

void control_client(Input input) {
  if (input.empty()) return;
  const bool authenticate = (input[0] & 1) != 0;
  const auto bytes = to_bytes(input.subspan(1), (input[0] & 2) != 0);
  const Listener listener;
  std::thread rank_0([&] { speak(listener, authenticate, bytes); });
  try {
    const auto client = comm::ControlPlane::connect(control_options(1), {"127.0.0.1", listener.port()});
    (void)client->gather("g", "mine");
    (void)client->get("k");
  } catch (const CommError&) {
  }
  rank_0.join();
}

}  // namespace dtrain::fuzz
