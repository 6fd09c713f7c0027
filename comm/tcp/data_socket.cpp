#include "tcp/data_socket.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace dtrain::comm {
namespace {

constexpr std::size_t kRecordBytes = 16u << 10;  // of the longest record of TLS

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

DataSocket::Moved ended_by(const Tls::Outcome& outcome) {
  const bool orderly = outcome.code == 0 && outcome.error.empty();
  return {.ended = true, .error = orderly ? 0 : outcome.code != 0 ? outcome.code : EPROTO, .cause = outcome.error};
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
DataSocket::DataSocket(UniqueFd fd, std::unique_ptr<Tls> tls) : fd_(std::move(fd)), tls_(std::move(tls)) {
  if (tls_) {
    record_.reserve(kRecordBytes);
    ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
  }
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  set_option(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, 5);
}

DataSocket::Moved DataSocket::read(std::span<iovec> into) {
  if (tls_) return read_tls(into);
  msghdr header = header_of(into);
  const ssize_t done = ::recvmsg(fd_.get(), &header, MSG_DONTWAIT);
  if (done == 0) return {.ended = true};
  return moved(done, bytes_of(into));
}

DataSocket::Moved DataSocket::write(std::span<iovec> from) {
  if (tls_) return write_tls(from);
  msghdr header = header_of(from);
  return moved(::sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL), bytes_of(from));
}

// What has come before an end or an error is returned first. libssl tells the reason of a failure once.
DataSocket::Moved DataSocket::read_tls(std::span<iovec> into) {
  if (end_) return *end_;
  Moved result;
  for (const iovec& piece : into) {
    for (std::size_t done = 0; done < piece.iov_len;) {
      const Tls::Outcome outcome = tls_->read(static_cast<std::byte*>(piece.iov_base) + done, piece.iov_len - done);
      if (outcome.want == Tls::Want::kEnd) {
        end_ = ended_by(outcome);
        if (result.bytes == 0) return *end_;
      }
      if (outcome.want != Tls::Want::kNothing) {
        result.again = end_.has_value();
        return result;
      }
      done += outcome.bytes;
      result.bytes += outcome.bytes;
    }
  }
  result.again = true;
  return result;
}

DataSocket::Moved DataSocket::write_tls(std::span<iovec> from) {
  if (end_) return *end_;
  Moved result;
  std::size_t piece = 0;
  std::size_t of_piece = 0;  // bytes of it that are in a record
  for (;;) {
    while (holds_back()) {
      const Tls::Outcome outcome = tls_->write(record_.data() + sent_, record_.size() - sent_);
      if (outcome.want == Tls::Want::kEnd) {
        // What has come before can still be read, unless TLS itself has failed.
        Moved end = ended_by(outcome);
        if (!end.cause.empty()) end_ = end;
        return end;
      }
      if (outcome.want != Tls::Want::kNothing) return result;
      sent_ += outcome.bytes;
    }
    record_.clear();
    sent_ = 0;
    while (piece < from.size() && record_.size() < kRecordBytes) {
      const std::size_t count = std::min(from[piece].iov_len - of_piece, kRecordBytes - record_.size());
      const auto* const begin = static_cast<const std::byte*>(from[piece].iov_base) + of_piece;
      record_.insert(record_.end(), begin, begin + count);
      result.bytes += count;
      of_piece += count;
      if (of_piece == from[piece].iov_len) ++piece, of_piece = 0;
    }
    if (record_.empty()) {
      result.again = true;
      return result;
    }
  }
}

void DataSocket::end_writing() {
  ::shutdown(fd_.get(), SHUT_WR);
}

bool DataSocket::has_delivered() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool known = ::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  if (!known || info.tcpi_state == TCP_CLOSE) return true;
  int left = 0;
  if (holds_back()) return false;
  return ::ioctl(fd_.get(), SIOCOUTQ, &left) != 0 || left == 0;
}

}  // namespace dtrain::comm
