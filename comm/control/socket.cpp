#include "control/socket.h"

#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

int open_tcp(const asio::ip::tcp& protocol) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "cannot make a socket");
  return fd;
}

constexpr const char* kCut = "cut";             // type of a connection's last message: its sender takes no more
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

std::string peer_text(const asio::ip::tcp::socket& socket) {
  asio::error_code unknown;
  const auto endpoint = socket.remote_endpoint(unknown);
  return unknown ? "unknown peer" : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

Connection::Connection(Proven proven, std::chrono::milliseconds host_silence)
    : wire_(std::move(proven.wire)),
      host_silence_(host_silence),
      peer_(std::move(proven.peer)),
      outgoing_(proven.keys.send),
      incoming_(proven.keys.receive) {
  // Heartbeats go both ways, so there is always something to acknowledge; the kernel alone would try for a quarter of
  // an hour.
  asio::error_code ignored;
  using UserTimeout = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  wire_.socket.set_option(UserTimeout(static_cast<int>(host_silence.count())), ignored);
}

void Connection::start(OnMessage on_message, OnClosed on_closed) {
  on_message_ = std::move(on_message);
  on_closed_ = std::move(on_closed);
  read_header();
}

void Connection::read_header() {
  wire_.async_read(header_.data(), header_.size(), [self = shared_from_this()](asio::error_code error) {
    if (self->closed_ || self->closing_) return;
    if (error) return self->lost(error);
    const std::size_t size = decode_length(self->header_.data());
    if (size == 0 || size > kFrameLimit) {
      return self->close(
          "a message of " + std::to_string(size) + " bytes (at most " + std::to_string(kFrameLimit) + " are allowed)",
          true);
    }
    self->read_payload(size);
  });
}

void Connection::read_payload(std::size_t size) {
  payload_.resize(size + kFrameMacBytes);
  wire_.async_read(payload_.data(), payload_.size(), [self = shared_from_this(), size](asio::error_code error) {
    if (self->closed_ || self->closing_) return;
    if (error) return self->lost(error);
    const std::string_view message = std::string_view(self->payload_).substr(0, size);
    try {
      self->incoming_.open(self->header_.data(), message, std::string_view(self->payload_).substr(size));
    } catch (const std::exception& tampered) {
      return self->cut(tampered.what());
    }
    try {
      // The handler is copied because it may close the connection, which releases the handlers.
      const OnMessage handler = self->on_message_;
      const Json content = decode_payload(message);
      if (optional_text(content, "t") == kCut) {
        return self->close("it has ended the connection: " + text_member(content, "why"));
      }
      handler(content);
    } catch (const std::exception& malformed) {
      return self->close(std::string("malformed message: ") + malformed.what(), true);
    }
    if (!self->closed_ && !self->closing_) self->read_header();
  });
}

// The other end should know why; it may not get this, where somebody on the way holds it back.
void Connection::cut(const std::string& why) {
  if (queue_.empty()) {
    const std::string frame = outgoing_.seal(encode_message({{"t", kCut}, {"why", why}}));
    (void)wire_.try_write(frame.data(), frame.size());
  }
  close(why, true);
}

void Connection::lost(const asio::error_code& error) {
  silent_ = error == asio::error::timed_out || error == asio::error::host_unreachable ||
            error == asio::error::network_unreachable || error == asio::error::network_down;
  close(silent_ ? "its host has not answered for " + format_duration(host_silence_) + " (" + error.message() + ")"
        : wire_.tls_error.empty() ? "connection lost"
                                  : "TLS: " + wire_.tls_error);
}

void Connection::send(std::string_view message) {
  if (closed_ || closing_) return;
  queue_.push_back(outgoing_.seal(message));
  queued_bytes_ += queue_.back().size();
  if (queued_bytes_ > kQueueLimit) return close("the peer reads nothing");
  if (queue_.size() == 1) write_next();
}

void Connection::write_next() {
  wire_.async_write(queue_.front().data(), queue_.front().size(), [self = shared_from_this()](asio::error_code error) {
    if (self->closed_) return;
    // If the writer sees a reset first, the peer's earlier messages must not be lost: the reader reads all that have
    // arrived and then closes.
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

void Connection::close(const std::string& reason, bool malformed) {
  if (closed_) return;
  closed_ = true;
  wire_.close();
  on_message_ = nullptr;
  if (const OnClosed handler = std::exchange(on_closed_, nullptr)) handler(reason, malformed);
}

}  // namespace dtrain::comm
