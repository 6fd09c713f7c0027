// UNIX sockets (SOCK_SEQPACKET) in the abstract namespace. They keep message boundaries, pass file descriptors, and
// leave nothing in the file system. Both sides ask the kernel for the user of the other: a listener accepts only
// processes of the same user (or root), and a client connects only to a listener of the same user (or root). Blocking
// unless noted otherwise.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"

namespace dtrain {

struct UnixMessage {
  std::string data;
  std::vector<UniqueFd> fds;
};

// One connected end. Sending and receiving may happen on two different threads.
class UnixSocket {
 public:
  UnixSocket() = default;
  explicit UnixSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  // Retries until the listener exists or `timeout` has passed (SystemError names the listener). Before each further
  // attempt it calls `check`, which may throw to give up. SystemError if the listener belongs to another user.
  static UnixSocket connect(const std::string& name, std::chrono::milliseconds timeout,
                            const std::function<void()>& check = {});

  // False: the peer is gone. The limits of a message are 64 KiB and 64 file descriptors. Sending blocks while too many
  // file descriptors of this user are in transit (as many as `ulimit -n`); after 10 s it throws a SystemError.
  bool send(std::string_view data, std::span<const int> fds = {});
  // Receives a message. Empty: the peer is gone, or no message came in time (then `timed_out` is set).
  std::optional<UnixMessage> receive(std::chrono::milliseconds timeout, bool* timed_out = nullptr);

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

// Two connected ends: one for this process, one for a child of it to inherit. SystemError.
struct UnixSocketPair {
  UnixSocket ours;
  UniqueFd theirs;
};
UnixSocketPair make_socket_pair();

class UnixListener {
 public:
  // Listens on a random name (`dtrain-<prefix>-<16 hex digits>`) in the abstract namespace.
  static UnixListener create(const std::string& prefix);
  // Listens on the given name. SystemError if the name is taken.
  static UnixListener create_named(const std::string& name);
  // Takes over a listening file descriptor that was inherited.
  UnixListener(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}

  // Returns a connection from a process of this user; closes connections of others at once. Empty: time-out.
  std::optional<UnixSocket> accept(std::chrono::milliseconds timeout);
  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  int release() { return fd_.release(); }

 private:
  UniqueFd fd_;
  std::string name_;
};

// Returns random bytes from the kernel, as hexadecimal digits.
std::string random_hex(std::size_t bytes);

}  // namespace dtrain
