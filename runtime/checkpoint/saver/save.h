// One save: from the request to the durable checkpoint.
#pragma once

#include <chrono>
#include <functional>

#include "dtrain/base/log.h"
#include "dtrain/checkpoint/saver.h"
#include "saver/messages.h"
#include "storage_folder.h"

namespace dtrain::checkpoints {

struct SaveEnvironment {
  const SaverOptions& options;
  const SnapshotMemory& memory;
  StorageLock& lock;
  // Waits this long, or until the rank that sent the request is gone; whether it is gone.
  std::function<bool(std::chrono::milliseconds)> wait_for_end_of_rank;
  Logger log;
};

// Never throws: what fails is in the result. The snapshot's memory is free afterwards.
SaveResult save(const SaveOrder& order, const SaveEnvironment& environment);

}  // namespace dtrain::checkpoints
