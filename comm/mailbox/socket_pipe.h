// The pipe between ranks of different hosts: a data connection.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "mailbox/byte_pipe.h"
#include "tcp/data_socket.h"
#include "tcp/event_loop.h"

namespace dtrain::comm {

class SocketPipe final : public BytePipe {
 public:
  explicit SocketPipe(DataSocket socket) : socket_(std::move(socket)) {}

  std::size_t write(std::span<iovec> pieces) override;
  bool holds_back() const override { return !broken_ && socket_.holds_back(); }
  std::size_t read(void* to, std::size_t bytes) override;
  std::optional<PipeEnd> end() const override;
  bool has_delivered() override;

  int fd() const { return socket_.fd(); }
  // The socket has become readable or writable.
  void note(const EventLoop::Event& event);

 private:
  static constexpr std::size_t kBuffer = 16u << 10;

  DataSocket socket_;
  bool readable_ = true;
  bool writable_ = true;
  bool to_its_end_ = false;  // no further event tells that there is more to read
  bool broken_ = false;      // nothing can be written any more
  bool ended_ = false;       // nothing can be read any more
  bool finished_ = false;    // the peer was told that nothing follows
  int error_ = 0;
  std::string cause_;  // of TLS; empty: none
  std::array<std::byte, kBuffer> buffer_;
  std::size_t begin_ = 0;  // what has been received and not read
  std::size_t end_ = 0;
};

}  // namespace dtrain::comm
