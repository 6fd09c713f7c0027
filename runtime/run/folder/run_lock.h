// Says that a process carries out the run in a folder: by a lock, which ends with that process, however it ends, and by
// the file .owner (run_owner.h) for hosts that do not see each other's locks. One thread.
#pragma once

#include <memory>

#include "dtrain/base/fd.h"
#include "dtrain/run/run_folder.h"
#include "folder/run_owner.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
