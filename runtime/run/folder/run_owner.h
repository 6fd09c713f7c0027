// The file .owner in a run's folder: which process carries out the run. It tells processes on several hosts apart where
// the file system has no locks, or has them on one host alone (NFS with nolock, Lustre with localflock). The owner
// touches the file every few seconds, and empties it when it ends. A copy of the folder has no owner. One thread
// besides the one that it starts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include <sys/types.h>

#include "dtrain/base/json.h"

namespace dtrain::run {

// Tells a folder from its copies, on every host. 0: not known.
std::uint64_t inode_of(const std::filesystem::path& folder);

struct OwnerProcess {
  std::string host;         // for messages
  std::string host_key;     // HostIdentity::key
  pid_t pid = 0;            // there
  std::uint64_t start = 0;  // in ticks since that host's boot

  static OwnerProcess self();
};

struct OwnerTimes {
  std::chrono::milliseconds beat{5'000};
  // An owner on another host that has not touched the file for that long is gone. Longer than a host may take to see
  // what another one has written.
  std::chrono::milliseconds silence{30'000};
};

class RunOwner {
 public:
  // Becomes the owner. ConfigError naming the present one if it lives: on this host as its process tells, which takes
  // no time; elsewhere as the file's time tells, for which this waits `silence` at most. SystemError if the file cannot
  // be written.
  RunOwner(const std::filesystem::path& run, const OwnerProcess& self, const OwnerTimes& times = {});
  ~RunOwner();
  RunOwner(const RunOwner&) = delete;
  RunOwner& operator=(const RunOwner&) = delete;

 private:
  bool is_mine() const;
  void beat();

  const std::filesystem::path file_;
  const Json self_;
  const OwnerTimes times_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace dtrain::run
