// What rank 1 hears from what it takes for rank 0: an impostor's words (bit 0 of the first byte clear), or those of a
// rank 0 that knows the secret, while rank 1 waits in get() and gather(); raw bytes, or a frame a line (bit 1), sealed.
#include <stdexcept>
#include <string>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>

#include "control_peer.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::fuzz {

namespace {

// A port that takes one connection, any that is free.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(fd_.get(), 1) != 0 ||
        ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  ControlPeer accept() const {
    UniqueFd peer(retried([&] { return ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
    const linger reset{1, 0};  // as in ControlPeer::connect
    ::setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    return ControlPeer(std::move(peer));
  }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

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
