// The way on which messages travel: a stream of bytes to another rank and one from it.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include <sys/uio.h>

namespace dtrain::comm {

// Why nothing comes any more, and how long the control plane has to report the cause before this becomes the error.
struct PipeEnd {
  std::string why;  // "has closed its mailbox"
  std::chrono::seconds patience{1};
};

// No call blocks. One thread at a time.
class BytePipe {
 public:
  virtual ~BytePipe() = default;
  // Sends the first bytes of these pieces, as many as there is room for, and returns their number.
  virtual std::size_t write(std::span<iovec> pieces) = 0;
  // True if write() must be called once there is room, if only with nothing.
  virtual bool holds_back() const { return false; }
  // Returns the number of bytes that were received, at most `bytes`.
  virtual std::size_t read(void* to, std::size_t bytes) = 0;
  // Empty: more may come.
  virtual std::optional<PipeEnd> end() const = 0;
  // Called after the last write(), until it returns true: all bytes are on the peer's host, or lost.
  virtual bool has_delivered() { return true; }
};

}  // namespace dtrain::comm
