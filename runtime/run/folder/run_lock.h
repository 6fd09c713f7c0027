// The lock that says that a process carries out the run in a folder. It ends with that process, however it ends. Where
// the file system of the folder has no locks, everyone gets it. One thread.
#pragma once

#include <string>

#include "dtrain/base/fd.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

class RunLock {
 public:
  RunLock() = default;
  // Takes the lock and names this process in it. ConfigError naming the holder if another process has the lock.
  static RunLock take(const RunFolder& folder, const std::string& host);
  void release() { file_.reset(); }

 private:
  UniqueFd file_;
};

}  // namespace dtrain::run
