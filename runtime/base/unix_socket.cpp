#include "dtrain/base/unix_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

constexpr std::size_t kMaxBytes = 64 * 1024;
constexpr std::size_t kMaxFds = 64;
constexpr std::chrono::seconds kFdsPatience{10};  // until file descriptors in flight have been received

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
};

// An abstract name starts with a zero byte and has no terminator.
Address abstract_address(const std::string& name) {
  Address address;
  if (name.empty() || name.size() + 1 > sizeof address.value.sun_path) {
    throw SystemError("cannot use the socket name '" + name + "'", ENAMETOOLONG);
  }
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd make_socket(int flags) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!fd) throw SystemError("cannot make a UNIX socket", errno);
  return fd;
}

bool is_gone(int code) {
  return code == EPIPE || code == ECONNRESET || code == ENOTCONN;
}

// Returns the user at the other end; empty if the kernel does not report it.
std::optional<uid_t> user_of_peer(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

bool is_trusted(std::optional<uid_t> user) {
  return user && (*user == ::geteuid() || *user == 0);
}

}  // namespace

UnixSocket UnixSocket::connect(const std::string& name, std::chrono::milliseconds timeout,
                               const std::function<void()>& check) {
  const Address address = abstract_address(name);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    // connect() must not block: a listener whose queue is full would delay it past the deadline.
    UniqueFd fd = make_socket(SOCK_NONBLOCK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) == 0) {
      if (const auto user = user_of_peer(fd.get()); !is_trusted(user)) {
        throw SystemError("the UNIX socket '" + name + "' belongs to " +
                              (user ? "user " + std::to_string(*user) : "an unknown user") + ", not to user " +
                              std::to_string(::geteuid()),
                          EACCES, "start all processes of a run as the same user");
      }
      if (::fcntl(fd.get(), F_SETFL, 0) != 0) throw SystemError("cannot set up the socket '" + name + "'", errno);
      return UnixSocket(std::move(fd));
    }
    const int code = errno;
    if (check) check();
    const bool retry = code == ECONNREFUSED || code == EAGAIN || code == EINTR || code == ENOENT;
    if (!retry || std::chrono::steady_clock::now() >= deadline) {
      throw SystemError("cannot connect to the UNIX socket '" + name + "'", code);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool UnixSocket::send(std::string_view data, std::span<const int> fds) {
  // An empty message looks like the end of the connection.
  if (data.empty() || data.size() > kMaxBytes || fds.size() > kMaxFds) {
    throw SystemError("cannot send a message of " + std::to_string(data.size()) + " bytes and " +
                          std::to_string(fds.size()) + " descriptors over a UNIX socket",
                      EMSGSIZE);
  }
  iovec part{const_cast<char*>(data.data()), data.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(item), fds.data(), fds.size_bytes());
  }
  const auto deadline = std::chrono::steady_clock::now() + kFdsPatience;
  while (::sendmsg(fd_.get(), &header, MSG_NOSIGNAL) < 0) {
    const int code = errno;
    if (code == EINTR) continue;
    if (is_gone(code)) return false;
    if (code != ETOOMANYREFS) throw SystemError("cannot send over a UNIX socket", code);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw SystemError(
          "cannot send file descriptors over a UNIX socket: too many of this user's are in flight, and no process "
          "receives them",
          code, "raise the limit of open files (ulimit -n), which bounds them too");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::optional<UnixMessage> UnixSocket::receive(std::chrono::milliseconds timeout, bool* timed_out) {
  if (timed_out) *timed_out = false;
  if (!wait_readable(fd_.get(), timeout)) {
    if (timed_out) *timed_out = true;
    return std::nullopt;
  }
  UnixMessage message;
  message.data.resize(kMaxBytes);
  iovec part{message.data.data(), message.data.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t count = TEMP_FAILURE_RETRY(::recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC));
  if (count < 0 && !is_gone(errno)) throw SystemError("cannot receive from a UNIX socket", errno);
  if (count <= 0) return std::nullopt;

  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t bytes = item->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + at, sizeof fd);
      message.fds.emplace_back(fd);
    }
  }
  if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
    throw SystemError("a message over a UNIX socket was cut off: too long, or too many descriptors are open here",
                      EMSGSIZE, "raise the limit of open files (ulimit -n)");
  }
  message.data.resize(static_cast<std::size_t>(count));
  return message;
}

UnixSocketPair make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SystemError("cannot make a socket pair", errno);
  }
  return {UnixSocket(UniqueFd(ends[0])), UniqueFd(ends[1])};
}

UnixListener UnixListener::create(const std::string& prefix) {
  return create_named("dtrain-" + prefix + "-" + random_hex(8));
}

UnixListener UnixListener::create_named(const std::string& name) {
  const Address address = abstract_address(name);
  // The socket does not block: a client that leaves between poll and accept must not block the listener.
  UniqueFd fd = make_socket(SOCK_NONBLOCK);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw SystemError("cannot listen on the UNIX socket '" + name + "'", errno);
  }
  return UnixListener(std::move(fd), name);
}

std::optional<UnixSocket> UnixListener::accept(std::chrono::milliseconds timeout) {
  const bool forever = timeout.count() < 0;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (!wait_readable(fd_.get(), forever ? timeout : std::max(left, std::chrono::milliseconds(0))))
      return std::nullopt;
    UniqueFd peer(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer && is_trusted(user_of_peer(peer.get()))) return UnixSocket(std::move(peer));
    if (!peer && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      throw SystemError("cannot accept on the UNIX socket '" + name_ + "'", errno);
    }
  }
}

std::string random_hex(std::size_t bytes) {
  std::string random(bytes, '\0');
  for (std::size_t have = 0; have < bytes;) {
    const ssize_t count = TEMP_FAILURE_RETRY(::getrandom(random.data() + have, bytes - have, 0));
    if (count < 0) throw SystemError("cannot get random bytes", errno);
    have += static_cast<std::size_t>(count);
  }
  return to_hex(random);
}

}  // namespace dtrain
