// The other end of a control connection, whatever it says: frames and bytes over a blocking socket.
#pragma once

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>

#include "control/protocol.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/handshake.h"
#include "targets.h"

namespace dtrain::fuzz {

// What both ends agree on; rank 1 of 2 talks to rank 0.
comm::ControlOptions control_options(int rank);
// What each end says of itself in the handshake.
comm::Introduction introduction(int rank);

// A system call again, as often as a signal interrupts it: libFuzzer's clock is one.
template <typename Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class ControlPeer {
 public:
  explicit ControlPeer(UniqueFd socket) : socket_(std::move(socket)) {}
  // To a listener of this host.
  static ControlPeer connect(std::uint16_t port);

  // Nobody may be listening any more: then nothing is sent, or comes.
  void send(std::string_view bytes);
  // Carries the messages of one end of a handshake; frames are sealed from then on. False: the other end has closed, or
  // does not take it.
  bool prove(comm::Handshake handshake);
  // A frame, sealed; empty text sends none.
  void send_sealed(std::string_view message);
  // As many bytes; none when the other end has closed before.
  std::string receive_bytes(std::size_t size);
  // The next sealed frame; empty when the other end has closed.
  std::optional<Json> receive();
  // The next message of a handshake; empty when the other end has closed.
  std::optional<std::string> receive_greeting();
  // Says that nothing more comes, then waits until the other end has closed, too.
  void end();

 private:
  bool fill(void* into, std::size_t size);
  UniqueFd socket_;
  std::optional<comm::FrameSeal> outgoing_, incoming_;
};

// A port of 127.0.0.1 that takes one connection, any that is free.
class Listener {
 public:
  Listener();
  std::uint16_t port() const { return port_; }
  ControlPeer accept() const;

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

// A message of the handshake with its header.
std::string greeting(std::string_view message);

}  // namespace dtrain::fuzz
