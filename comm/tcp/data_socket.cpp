#include "tcp/data_socket.h"

#include <cerrno>
#include <cstddef>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace dtrain::comm {
namespace {

std::size_t bytes_of(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

DataSocket::Moved moved(ssize_t done, std::size_t wanted) {
  if (done >= 0) return {.bytes = static_cast<std::size_t>(done), .again = static_cast<std::size_t>(done) == wanted};
  if (errno == EINTR) return {.again = true};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
  return {.ended = true, .error = errno};
}

msghdr header_of(std::span<iovec> pieces) {
  msghdr header{};
  header.msg_iov = pieces.data();
  header.msg_iovlen = pieces.size();
  return header;
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);  // a system without it has its defaults
}

}  // namespace

// A host that has vanished is noticed while nothing is sent. TCP_USER_TIMEOUT would also end the connection to a
// process that is stopped for a while, and so reads nothing; the control plane notices hosts that vanish while data is
// sent.
DataSocket::DataSocket(UniqueFd fd) : fd_(std::move(fd)) {
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  set_option(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, 5);
}

DataSocket::Moved DataSocket::read(std::span<iovec> into) {
  msghdr header = header_of(into);
  const ssize_t done = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT);
  if (done == 0) return {.ended = true};
  return moved(done, bytes_of(into));
}

DataSocket::Moved DataSocket::write(std::span<iovec> from) {
  msghdr header = header_of(from);
  return moved(::sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL), bytes_of(from));
}

void DataSocket::end_writing() {
  ::shutdown(fd_.get(), SHUT_WR);
}

bool DataSocket::has_delivered() const {
  int left = 0;
  return ::ioctl(fd_.get(), SIOCOUTQ, &left) != 0 || left == 0;
}

}  // namespace dtrain::comm
