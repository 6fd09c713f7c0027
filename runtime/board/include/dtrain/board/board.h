// The board: a local web page for all runs in some folders, and for the queue. It reads the runs' folders and the
// ledger, as the commands do, so it costs training nothing and needs no run to be going on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::board {

struct BoardOptions {
  std::vector<std::filesystem::path> folders;  // of runs; absolute
  std::string address = "127.0.0.1";           // on which it listens
  std::uint16_t port = 0;                      // 0: a free one
  std::string base_url;  // "https://host/dtrain", by which a proxy is reached; empty: there is none
  bool control = false;  // runs may be launched, and tasks killed, paused and activated
  bool open = false;     // opens the page in the user's browser
};

// Prints the page's address, and serves until SIGINT or SIGTERM. ConfigError: `base_url` is no URL. SystemError: it
// cannot listen.
ExitCode serve_board(const BoardOptions& options);

}  // namespace dtrain::board
