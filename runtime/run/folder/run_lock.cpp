#include "folder/run_lock.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
