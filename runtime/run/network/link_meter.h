// Measures a connection between two hosts: its round trip and its bandwidth, in a fraction of a second. Both ends first
// prove that they know the launch's secret; a connection without that proof is closed. All messages are bounded, and
// every wait has a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include <sys/socket.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"

namespace dtrain::run {

// The facts that both ends of a measurement know. `server` is the number of the host that is meant to answer: an
// address that several hosts have must not be taken for another host.
struct LinkKey {
  std::string secret;
  int server = 0;
};

// Answers on one address, on a thread of its own for the life of the object; one connection at a time.
class LinkServer {
 public:
  // SystemError if it cannot listen there.
  LinkServer(const std::string& address, LinkKey key);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;
  int port() const { return port_; }

 private:
  void serve(int stop) const;

  LinkKey key_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd: ends the thread
  int port_ = 0;
  std::thread thread_;
};

struct LinkTarget {
  std::string from;  // this end's address
  std::string address;
  int port = 0;
};

// Returns the median of some round trips of a few bytes. CommError: no connection, the wrong server, or too slow.
Nanoseconds measure_round_trip(const LinkTarget& target, const LinkKey& key);

// Bits per second that arrive at the server while this end sends for `duration`. The first part does not count: TCP
// needs it to reach full speed, and a traffic shaper lets a burst pass. CommError as above.
double measure_bandwidth(const LinkTarget& target, const LinkKey& key, Nanoseconds duration);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
// CommError: `address` is no IP address.
SocketAddress socket_address(const std::string& address, int port);

// One end of a measuring connection: bounded reads and writes with a deadline, and the proof that the other end knows
// the secret. For tests besides link_meter.cpp. One thread.
class LinkStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LinkStream(UniqueFd fd, Time deadline);
  // CommError gives the reason if there is no connection.
  static LinkStream connect(const LinkTarget& target, Time deadline);

  // CommError: the other end is gone, or the deadline has passed. `read` returns exactly `bytes` bytes.
  std::string read(std::size_t bytes);
  void write(const std::string& text);
  // Makes a single read or write. Returns the number of bytes; 0 at the end of the stream or at the deadline.
  std::size_t read_some(char* buffer, std::size_t size);
  std::size_t write_some(const char* buffer, std::size_t size);
  void end_writing();
  void set_deadline(Time deadline) { deadline_ = deadline; }

  // Comes first on a connection, on both sides. CommError: the other side does not know the secret, or is another host
  // than intended.
  void prove_as_client(const LinkKey& key);
  void prove_as_server(const LinkKey& key);

 private:
  bool wait(short events) const;

  UniqueFd fd_;
  Time deadline_;
};

}  // namespace dtrain::run
