// Shows that a process carries out the run in a folder: by a lock, which ends with that process, however it ends, and
// by the file .owner for hosts that do not see each other's locks (NFS with nolock, Lustre with localflock). One thread
// besides the thread that an owner starts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <sys/types.h>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::rank {

// Returns a number that tells a folder from its copies, on every host. 0: not known.
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
  // An owner on another host that has not touched the file for that long is gone. The time is longer than a host may
  // take to see the writes of another one.
  std::chrono::milliseconds silence{30'000};
};

// The file .owner in a run's folder: which process carries out the run. The owner touches the file every few seconds,
// and empties it when it ends. A copy of the folder has no owner.
class RunOwner {
 public:
  // Becomes the owner. ConfigError names the present owner if it lives: on this host its process shows this at once;
  // elsewhere the file's time shows it, for which the constructor waits `silence` at most. SystemError if the file
  // cannot be written.
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

// The lock and the owner of a run's folder. One thread.
class RunLock {
 public:
  RunLock() = default;
  // ConfigError naming the holder if another process carries out the run; RunOwner's.
  static RunLock take(const RunFolder& folder);
  void release() {
    owner_.reset();
    file_.reset();
  }

  // Around a fork after which the child carries out the run: the lock stays, and the child becomes the owner. A thread,
  // which touches the owner's file, does not survive a fork.
  void disown() { owner_.reset(); }
  void own(const RunFolder& folder);  // as take()

 private:
  UniqueFd file_;
  std::unique_ptr<RunOwner> owner_;
};

}  // namespace dtrain::rank
