// The bytes of one data connection, as they are or under TLS: the one place that reads and writes them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "control/tls.h"
#include "dtrain/base/file.h"

namespace dtrain::comm {

// Does not block; no call raises SIGPIPE. One thread at a time.
class DataSocket {
 public:
  // `fd`: a connected TCP socket. `tls`: its session, after the handshake; null: none.
  DataSocket(UniqueFd fd, std::unique_ptr<Tls> tls);

  struct Moved {
    std::size_t bytes = 0;
    bool again = false;  // there may be more to read, or room to write
    bool ended = false;  // the peer sends nothing more, or the connection is lost; `error`: why, 0 for an orderly end
    int error = 0;
    std::string cause{};  // what TLS says; empty: nothing
  };
  Moved read(std::span<iovec> into);
  // What it counts as written must not be given again; a part of it may be held back.
  Moved write(std::span<iovec> from);
  // True if write() must be called once there is room, if only with nothing.
  bool holds_back() const { return sent_ < record_.size(); }
  // Nothing more will be written.
  void end_writing();
  // True if the peer's host has all that was written, or the connection is gone.
  bool has_delivered() const;

  int fd() const { return fd_.get(); }
  bool has_tls() const { return tls_ != nullptr; }

 private:
  Moved read_tls(std::span<iovec> into);
  Moved write_tls(std::span<iovec> from);

  UniqueFd fd_;
  std::unique_ptr<Tls> tls_;
  // The record that is being encrypted and written: TLS demands the same bytes again until it is.
  std::vector<std::byte> record_;
  std::size_t sent_ = 0;      // bytes of it
  std::optional<Moved> end_;  // of TLS
};

}  // namespace dtrain::comm
