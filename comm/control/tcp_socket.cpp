#include "control/tcp_socket.h"

#include <cerrno>
#include <system_error>

#include <sys/socket.h>
#include <unistd.h>

namespace dtrain::comm {
namespace {

int open_tcp(const asio::ip::tcp& protocol) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "cannot make a socket");
  return fd;
}

}  // namespace

asio::ip::tcp::socket make_tcp_socket(asio::io_context& io, const asio::ip::tcp& protocol) {
  return {io, protocol, open_tcp(protocol)};
}

void open_acceptor(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol) {
  acceptor.assign(protocol, open_tcp(protocol));
  acceptor.non_blocking(true);  // the waiting peer may be gone before it is accepted
}

asio::ip::tcp::socket accept_waiting(asio::ip::tcp::acceptor& acceptor, asio::io_context& io, asio::error_code& error) {
  asio::ip::tcp::socket socket(io);
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    error = asio::error_code(errno, asio::system_category());
    return socket;
  }
  socket.assign(acceptor.local_endpoint().protocol(), fd, error);
  if (error) ::close(fd);
  return socket;
}

}  // namespace dtrain::comm
