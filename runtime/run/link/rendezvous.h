// How the ranks of one host find rank 0: a file, readable by this user alone, that rank 0 writes its address and a
// fresh secret into. It is removed once everyone has connected. Calls come from one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

namespace dtrain::run {

struct Contact {
  std::string address;
  std::uint16_t port = 0;
  std::string secret;
};

// Rank 0's side. The file appears whole, with mode 0600, and is gone with this object.
class RendezvousFile {
 public:
  RendezvousFile(std::filesystem::path path, const Contact& contact);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::filesystem::path path_;
};

// Everyone else's side: waits until the file is there and its writer lives (one that a dead job left is not taken).
// CommError names the file at the deadline; DataError when it is not what rank 0 writes.
Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout);

// `job` as a file name in `folder`.
std::filesystem::path rendezvous_path(const std::filesystem::path& folder, const std::string& job);

}  // namespace dtrain::run
