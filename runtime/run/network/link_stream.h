// One end of a measuring connection: bounded reads and writes with a deadline, and the proof that the other end knows
// the secret. Private to link_meter. One thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <sys/socket.h>

#include "dtrain/base/fd.h"
#include "network/link_meter.h"

namespace dtrain::run {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
// CommError: `address` is no IP address.
SocketAddress socket_address(const std::string& address, int port);

class LinkStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LinkStream(UniqueFd fd, Time deadline);
  // CommError gives the reason if there is no connection.
  static LinkStream connect(const LinkTarget& target, Time deadline);

  // CommError: the other end is gone, or the deadline has passed. `read` returns exactly `bytes` bytes.
  std::string read(std::size_t bytes);
  void write(const std::string& text);
  // A single read or write. Returns the number of bytes; 0 at the end of the stream or at the deadline.
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
