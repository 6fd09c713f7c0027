#include "mailbox/socket_pipe.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace dtrain::comm {

void SocketPipe::note(const EventLoop::Event& event) {
  if (event.readable) readable_ = !ended_;
  to_its_end_ = to_its_end_ || event.ended;
  if (!event.writable) return;
  writable_ = !broken_;
  if (socket_.has_tls()) readable_ = !ended_;  // libssl may have waited for room before it could read
}

std::size_t SocketPipe::write(std::span<iovec> pieces) {
  if (!writable_ || (pieces.empty() && !holds_back())) return 0;
  const DataSocket::Moved moved = socket_.write(pieces);
  writable_ = moved.again && !moved.ended;
  if (moved.ended) {
    broken_ = true;
    if (moved.error != EPIPE) error_ = moved.error;  // the socket reports it once
    readable_ = !ended_;                             // reading finds the end, after what has arrived
  }
  return moved.bytes;
}

// One call fills the caller's memory and then the buffer, so many small reads cost one call.
std::size_t SocketPipe::read(void* to, std::size_t bytes) {
  if (begin_ < end_) {
    const std::size_t most = std::min(bytes, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, most);
    begin_ += most;
    return most;
  }
  if (!readable_) return 0;
  std::array<iovec, 2> pieces{iovec{to, bytes}, iovec{buffer_.data(), buffer_.size()}};
  const DataSocket::Moved moved = socket_.read(pieces);
  if (moved.ended) {
    readable_ = writable_ = false;
    ended_ = broken_ = true;
    if (moved.error != 0) error_ = moved.error;
    cause_ = moved.cause;
    return 0;
  }
  readable_ = moved.again || (to_its_end_ && moved.bytes > 0);
  begin_ = 0;
  end_ = moved.bytes - std::min(moved.bytes, bytes);
  return std::min(moved.bytes, bytes);
}

std::optional<PipeEnd> SocketPipe::end() const {
  if (!ended_ || begin_ < end_) return std::nullopt;
  if (!cause_.empty()) return PipeEnd{"has lost its connection (TLS: " + cause_ + ")"};
  if (error_ == 0) return PipeEnd{"has closed its mailbox"};
  const std::string why = "has lost its connection (" + std::generic_category().message(error_) + ")";
  return PipeEnd{why, std::chrono::seconds(error_ == ETIMEDOUT ? 3 : 1)};
}

bool SocketPipe::has_delivered() {
  if (ended_ || broken_) return true;
  if (socket_.holds_back()) {
    writable_ = true;
    write({});
    return false;
  }
  if (!std::exchange(finished_, true)) socket_.end_writing();
  return socket_.has_delivered();
}

}  // namespace dtrain::comm
