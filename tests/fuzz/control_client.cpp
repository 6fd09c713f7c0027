// What rank 1 hears from what it takes for rank 0: an impostor's words (bit 0 of the first byte clear), or those of a
// rank 0 that knows the secret, while rank 1 waits in get() and gather(); raw bytes, or a frame a line (bit 1), sealed.
#include <string>
#include <thread>

#include "control_peer.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::fuzz {

namespace {

void speak(const Listener& listener, bool authenticate, const std::string& text, bool lines_are_frames) {
  auto peer = listener.accept();
  if (authenticate) {
    const auto options = control_options(0);
    if (!peer.prove(comm::Handshake::listening(options.secret, introduction(0), {}))) return peer.end();
    // Rank 1 waits for its gather from here on.
    for (auto message = peer.receive(); message && message->at("t") != "gather"; message = peer.receive()) {
    }
  }
  if (!lines_are_frames) {
    peer.send(text);
  } else {
    for (const auto& line : dtrain::split(text, '\n'))
      authenticate ? peer.send_sealed(line) : peer.send(greeting(line));
  }
  peer.send(std::string(comm::kFrameHeaderBytes, '\0'));  // no message: rank 1 gives up instead of connecting again
  peer.end();
}

}  // namespace

void control_client(Input input) {
  if (input.empty()) return;
  const bool authenticate = (input[0] & 1) != 0;
  const std::string text(input.begin() + 1, input.end());
  const Listener listener;
  std::thread rank_0([&] { speak(listener, authenticate, text, (input[0] & 2) != 0); });
  try {
    const auto client = comm::ControlPlane::connect(control_options(1), {"127.0.0.1", listener.port()});
    (void)client->gather("g", "mine");
    (void)client->get("k");
  } catch (const CommError&) {
  }
  rank_0.join();
}

}  // namespace dtrain::fuzz
