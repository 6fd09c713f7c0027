// How the ranks of one host find rank 0: rank 0 writes its address and a fresh secret into a file that only this user
// can read. The file is removed once all ranks have connected. One thread.
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

// Rank 0's side. The file appears complete, with mode 0600, and is removed with this object.
class RendezvousFile {
 public:
  RendezvousFile(std::filesystem::path path, const Contact& contact);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::filesystem::path path_;
};

// The other ranks' side: waits for a file whose writer lives, and ignores one that a dead job left. CommError names the
// file at the deadline; DataError if the file is malformed.
Contact await_contact(const std::filesystem::path& path, std::chrono::milliseconds timeout);

// The rendezvous file of `job` in `folder`.
std::filesystem::path rendezvous_path(const std::filesystem::path& folder, const std::string& job);

}  // namespace dtrain::run
