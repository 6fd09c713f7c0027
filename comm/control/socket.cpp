#include "control/socket.h"

#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

int open_tcp(const asio::ip::tcp& protocol) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "cannot make a socket");
  return fd;
}

constexpr std::size_t kQueueLimit = 64u << 20;  // a peer that reads nothing must not fill this rank's memory

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

Connection::Connection(asio::ip::tcp::socket socket, std::chrono::milliseconds host_silence)
    : socket_(std::move(socket)), host_silence_(host_silence) {
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Heartbeats go both ways, so there is always something to acknowledge; the kernel alone would try for a quarter of
  // an hour.
  using UserTimeout = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  socket_.set_option(UserTimeout(static_cast<int>(host_silence.count())), ignored);
  asio::error_code unknown;
  const auto endpoint = socket_.remote_endpoint(unknown);
  peer_ = unknown ? "unknown peer" : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

void Connection::start(OnMessage on_message, OnClosed on_closed) {
  on_message_ = std::move(on_message);
  on_closed_ = std::move(on_closed);
  read_header();
}

void Connection::read_header() {
  asio::async_read(socket_, asio::buffer(header_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (self->closed_ || self->closing_) return;
    if (error) return self->lost(error);
    const std::size_t size = decode_length(self->header_.data());
    if (size == 0 || size > self->limit_) {
      return self->close(
          "a message of " + std::to_string(size) + " bytes (at most " + std::to_string(self->limit_) + " are allowed)",
          true);
    }
    self->read_payload(size);
  });
}

void Connection::read_payload(std::size_t size) {
  payload_.resize(size);
  asio::async_read(socket_, asio::buffer(payload_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (self->closed_ || self->closing_) return;
    if (error) return self->lost(error);
    try {
      // The handler is copied because it may close the connection, which releases the handlers.
      const OnMessage handler = self->on_message_;
      handler(decode_payload(self->payload_));
    } catch (const std::exception& malformed) {
      return self->close(std::string("malformed message: ") + malformed.what(), true);
    }
    if (!self->closed_ && !self->closing_) self->read_header();
  });
}

void Connection::lost(const asio::error_code& error) {
  silent_ = error == asio::error::timed_out || error == asio::error::host_unreachable ||
            error == asio::error::network_unreachable || error == asio::error::network_down;
  close(silent_ ? "its host has not answered for " + format_duration(host_silence_) + " (" + error.message() + ")"
                : "connection lost");
}

void Connection::send(std::string frame) {
  if (closed_ || closing_) return;
  queued_bytes_ += frame.size();
  if (queued_bytes_ > kQueueLimit) return close("the peer reads nothing");
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1) write_next();
}

void Connection::write_next() {
  asio::async_write(socket_, asio::buffer(queue_.front()),
                    [self = shared_from_this()](asio::error_code error, std::size_t) {
                      if (self->closed_) return;
                      // If the writer sees a reset first, the peer's earlier messages must not be lost: the reader
                      // reads all that have arrived and then closes.
                      self->queued_bytes_ -= self->queue_.front().size();
                      self->queue_.pop_front();
                      if (error && self->closing_) return self->close(self->closing_reason_);
                      if (error) return;
                      if (!self->queue_.empty()) return self->write_next();
                      if (self->closing_) self->close(self->closing_reason_);
                    });
}

void Connection::close_when_sent(const std::string& reason) {
  if (closed_ || closing_) return;
  closing_ = true;
  closing_reason_ = reason;
  if (queue_.empty()) close(reason);
}

int Connection::release() {
  closed_ = true;
  on_message_ = nullptr;
  on_closed_ = nullptr;
  return socket_.release();
}

void Connection::close(const std::string& reason, bool malformed) {
  if (closed_) return;
  closed_ = true;
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  on_message_ = nullptr;
  if (const OnClosed handler = std::exchange(on_closed_, nullptr)) handler(reason, malformed);
}

}  // namespace dtrain::comm
