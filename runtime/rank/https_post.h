// One HTTPS request, for servers that take a bearer token.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>

namespace dtrain::rank {

struct HttpsPost {
  std::string url;                // "https://name[:port]/path"
  std::filesystem::path ca_file;  // the certificates that are trusted; empty: those of the machine
  std::string token;
  std::string body;  // JSON
};

// Returns once the server has taken the request: its answer is 2xx. Error says what is wrong, or that `patience` is
// over, or `abandoned`. Looking up the server's name may take longer. Any thread that blocks SIGPIPE.
void send(const HttpsPost& post, std::chrono::milliseconds patience, const std::atomic<bool>& abandoned);

}  // namespace dtrain::rank
