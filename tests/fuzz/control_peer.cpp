#include "control_peer.h"

#include <array>
#include <cstring>
#include <stdexcept>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/protocol.h"

namespace dtrain::fuzz {

comm::ControlOptions control_options(int rank) {
  comm::ControlOptions options;
  options.world = {rank, 2, rank, 2, "fuzz-host"};
  options.secret = "a secret for fuzzing only";
  options.timeout = std::chrono::seconds(10);  // never met, also where many programs share the cores
  options.heartbeat = std::chrono::seconds(60);
  options.session = "fuzz";
  return options;
}

comm::Introduction introduction(int rank) {
  return {.purpose = comm::kControlPurpose, .session = "fuzz", .size = 2, .rank = rank, .pid = 1, .host = {}};
}

ControlPeer ControlPeer::connect(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A reset at the end: thousands of connections a second must not leave thousands of ports waiting.
  const linger reset{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int result = fd ? ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) : -1;
  if (result != 0 && errno == EINTR) {  // it goes on in the background
    pollfd connected{fd.get(), POLLOUT, 0};
    result = retried([&] { return ::poll(&connected, 1, -1); }) == 1 ? 0 : -1;
  }
  if (result != 0) {
    throw std::runtime_error("cannot connect to port " + std::to_string(port) + ": " + std::strerror(errno));
  }
  return ControlPeer(std::move(fd));
}

void ControlPeer::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = retried([&] { return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

bool ControlPeer::prove(comm::Handshake handshake) {
  using State = comm::Handshake::State;
  send(handshake.begin());
  while (handshake.state() == State::kRunning) {
    const auto message = receive_greeting();
    if (!message) return false;
    send(handshake.receive(*message));
  }
  if (handshake.state() != State::kProven) return false;
  outgoing_.emplace(handshake.keys().send);
  incoming_.emplace(handshake.keys().receive);
  return true;
}

void ControlPeer::send_sealed(std::string_view message) {
  if (!message.empty()) send(outgoing_.value().seal(message));
}

bool ControlPeer::fill(void* into, std::size_t size) {
  auto* next = static_cast<std::byte*>(into);
  while (size > 0) {
    const auto got = retried([&] { return ::recv(socket_.get(), next, size, 0); });
    if (got <= 0) return false;
    next += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

std::optional<std::string> ControlPeer::receive_greeting() {
  std::array<unsigned char, comm::kHandshakeHeaderBytes> header{};
  if (!fill(header.data(), header.size())) return {};
  std::string message(comm::decode_length(header.data()), '\0');
  if (!fill(message.data(), message.size())) return {};
  return message;
}

std::optional<Json> ControlPeer::receive() {
  std::array<unsigned char, comm::kFrameHeaderBytes> header{};
  if (!fill(header.data(), header.size())) return {};
  std::string payload(comm::decode_length(header.data()), '\0');
  std::string mac(comm::kFrameMacBytes, '\0');
  if (!fill(payload.data(), payload.size()) || !fill(mac.data(), mac.size())) return {};
  incoming_.value().open(header.data(), payload, mac);
  return comm::decode_payload(payload);
}

std::string ControlPeer::receive_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  return fill(bytes.data(), size) ? bytes : std::string();
}

void ControlPeer::end() {
  ::shutdown(socket_.get(), SHUT_WR);
  std::array<char, 4096> rest;
  while (retried([&] { return ::recv(socket_.get(), rest.data(), rest.size(), 0); }) > 0) {
  }
}

Listener::Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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

ControlPeer Listener::accept() const {
  UniqueFd peer(retried([&] { return ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
  const linger reset{1, 0};  // as in ControlPeer::connect
  ::setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return ControlPeer(std::move(peer));
}

std::string greeting(std::string_view message) {
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(message.size() >> shift & 255));
  return frame.append(message);
}

}  // namespace dtrain::fuzz
