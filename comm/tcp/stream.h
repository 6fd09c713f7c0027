// One data connection to a peer: writes frames from where their bytes are, and reads them to where their bytes go.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tcp/data_socket.h"
#include "tcp/inbox.h"

namespace dtrain::comm {

// A frame that is to be written.
struct OutgoingFrame {
  FrameHeader header;
  const void* data = nullptr;        // must not change until it is written
  std::optional<Message> message{};  // it is over then
};

// Takes the frames that have no bytes.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  virtual Inbox& inbox() = 0;
  virtual void granted(const FrameHeader& header) = 0;
  virtual void said_goodbye() = 0;
  virtual void unknown() = 0;  // a frame of no known kind; throws
};

// One thread at a time.
class Stream {
 public:
  explicit Stream(DataSocket socket) : socket_(std::move(socket)) {}

  // Urgent frames go before those that are not.
  void send(const OutgoingFrame& frame, bool urgent) { (urgent ? urgent_ : bulk_).push_back(frame); }
  std::size_t waiting() const { return urgent_.size() + bulk_.size() + (current_ || socket_.holds_back() ? 1 : 0); }
  // Writes as much as there is room for; true if there is room for more. Messages that are over are added to `over`.
  bool write(std::vector<Message>& over);
  // Reads a part of what has arrived; true if there may be more.
  bool read(FrameSink& sink);
  // The socket has become so.
  void set_readable(bool to_its_end) {
    readable_ = !ended_;
    to_its_end_ = to_its_end_ || to_its_end;
  }
  void set_writable() {
    writable_ = !ended_ && !broken_;
    if (socket_.has_tls()) readable_ = !ended_;  // libssl may have waited for room before it could read
  }

  // The peer sends nothing more; error(): why, 0 for an orderly end.
  bool ended() const { return ended_; }
  int error() const { return error_; }
  const std::string& cause() const { return cause_; }  // of TLS; empty: none
  // Nothing can be written any more; read() finds the end, after what has arrived.
  bool broken() const { return broken_; }
  DataSocket& socket() { return socket_; }

 private:
  void take(std::size_t bytes, FrameSink& sink);
  void begin_frame(const FrameHeader& header, FrameSink& sink);
  bool wrote(std::deque<OutgoingFrame>& queue, std::size_t& bytes, std::vector<Message>& over);

  static constexpr std::size_t kBuffer = 16u << 10;

  DataSocket socket_;
  bool readable_ = true;
  bool writable_ = true;
  bool ended_ = false;
  bool broken_ = false;
  int error_ = 0;
  std::string cause_;
  bool to_its_end_ = false;  // no further event tells that there is more to read

  std::deque<OutgoingFrame> urgent_;
  std::deque<OutgoingFrame> bulk_;
  std::optional<OutgoingFrame> current_;  // a part of it is written
  std::size_t written_ = 0;               // bytes of it, its header included

  FrameHeader header_;  // of the frame that arrives
  Inbox::Place place_;
  std::byte* to_ = nullptr;
  std::size_t left_ = 0;                   // bytes of it that have not arrived
  std::array<std::byte, kBuffer> buffer_;  // what has arrived behind it
  std::size_t buffered_ = 0;
};

}  // namespace dtrain::comm
