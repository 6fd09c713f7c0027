// The bytes of one data connection: the one place that reads and writes them, so that a second kind can encrypt them.
#pragma once

#include <span>

#include <sys/uio.h>

#include "dtrain/base/file.h"

namespace dtrain::comm {

// Does not block; no call raises SIGPIPE. One thread at a time.
class DataSocket {
 public:
  // `fd`: a connected TCP socket.
  explicit DataSocket(UniqueFd fd);

  struct Moved {
    std::size_t bytes = 0;
    bool again = false;  // there may be more to read, or room to write
    bool ended = false;  // the peer sends nothing more, or the connection is lost; `error`: why, 0 for an orderly end
    int error = 0;
  };
  Moved read(std::span<iovec> into);
  Moved write(std::span<iovec> from);
  // Nothing more will be written.
  void end_writing();
  // True if the peer's host has all that was written.
  bool has_delivered() const;

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace dtrain::comm
