#include "dtrain/rank/run_lock.h"

#include <cerrno>
#include <optional>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/host/network.h"
#include "dtrain/host/processes.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;

using std::chrono::nanoseconds;

Json to_json(const OwnerProcess& owner, const fs::path& run) {
  return {{"host", owner.host},
          {"host_key", owner.host_key},
          {"pid", owner.pid},
          {"start", owner.start},
          {"folder", inode_of(run)}};
}

// Returns the owner; empty: nobody owns the run, or the file cannot be read.
std::optional<OwnerProcess> owner_in(const fs::path& file) {
  try {
    const Json json = Json::parse(read_file(file));
    if (json.at("folder") != inode_of(file.parent_path())) return std::nullopt;
    return OwnerProcess{json.at("host"), json.at("host_key"), json.at("pid"), json.at("start")};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Returns the file's time by the clock of the file system. Opens the file, so that cached attributes are read anew.
// Empty: there is no such file.
std::optional<nanoseconds> time_of(const fs::path& file) {
  const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!opened || ::fstat(opened.get(), &info) != 0) return std::nullopt;
  return std::chrono::seconds(info.st_mtim.tv_sec) + nanoseconds(info.st_mtim.tv_nsec);
}

// Returns the present time by the clock of the file system.
std::optional<nanoseconds> time_there(const fs::path& folder) {
  const fs::path probe = folder / (".now-" + std::to_string(::getpid()));
  const UniqueFd file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) return std::nullopt;
  write_all(file.get(), "now");
  const auto time = time_of(probe);
  ::unlink(probe.c_str());
  return time;
}

// True if a process of another host has touched the file within the last `silence` and does so again within the next.
bool is_touched(const fs::path& file, const OwnerTimes& times) {
  const auto before = time_of(file);
  const auto present = time_there(file.parent_path());
  if (!before || !present || *present - *before > times.silence) return false;
  const auto deadline = std::chrono::steady_clock::now() + times.silence;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(times.beat / 10);
    const auto time = time_of(file);
    if (time && *time != *before) return true;
  }
  return false;
}

bool lives(const OwnerProcess& owner, const std::string& host_key, const fs::path& file, const OwnerTimes& times) {
  if (owner.host_key == host_key) return host::start_ticks(owner.pid) == owner.start;
  return is_touched(file, times);
}

}  // namespace

std::uint64_t inode_of(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? info.st_ino : 0;
}

OwnerProcess OwnerProcess::self() {
  const host::HostIdentity identity = host::host_identity();
  return {identity.name, identity.key, ::getpid(), host::start_ticks(::getpid())};
}

RunOwner::RunOwner(const fs::path& run, const OwnerProcess& self, const OwnerTimes& times)
    : file_(run / ".owner"), self_(to_json(self, run)), times_(times) {
  const auto owner = owner_in(file_);
  if (owner && to_json(*owner, run) != self_ && lives(*owner, self.host_key, file_, times)) {
    throw ConfigError("the run " + run.string() + " is in progress: process " + std::to_string(owner->pid) + " on " +
                          owner->host + " carries it out",
                      "wait for its end, or stop it first (Ctrl-C there, dtrain task kill)");
  }
  write_file_atomic(file_, to_line(self_));
  const BlockedSignals blocked;  // signals are for the threads that wait for them
  thread_ = start_thread("the lock of the run's folder", [this] { beat(); });
}

RunOwner::~RunOwner() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (is_mine() && ::truncate(file_.c_str(), 0) != 0) return;  // the next one waits for `silence`
}

bool RunOwner::is_mine() const {
  const auto owner = owner_in(file_);
  return owner && to_json(*owner, file_.parent_path()) == self_;
}

void RunOwner::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, times_.beat, [this] { return ends_; })) {
    // An owner that was taken for gone, as after a suspended machine, must not touch the file of its successor.
    if (is_mine()) ::utimensat(AT_FDCWD, file_.c_str(), nullptr, 0);  // after a failure the next beat tries again
  }
}

RunLock RunLock::take(const RunFolder& folder) {
  const std::filesystem::path path = folder.path / ".lock";
  RunLock lock;
  lock.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock.file_) throw SystemError("cannot open " + path.string(), errno);
  // Any other error: this file system has no locks.
  if (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const std::string holder = read_file(path);
    throw ConfigError("the run " + folder.path.string() + " is in progress: " +
                          (holder.empty() ? std::string("another process") : holder) + " carries it out",
                      "wait for its end, or stop it first (Ctrl-C there, dtrain task kill)");
  }
  lock.own(folder);
  return lock;
}

void RunLock::own(const RunFolder& folder) {
  const OwnerProcess self = OwnerProcess::self();
  owner_ = std::make_unique<RunOwner>(folder.path, self);
  const std::string text = "process " + std::to_string(self.pid) + " on " + self.host;
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) return;  // for messages alone
  write_all(file_.get(), text);
}

}  // namespace dtrain::rank
