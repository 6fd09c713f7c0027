// Makes one checkpoint, from the request until it is durable.
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
  // Waits this long, or until the rank that sent the request has ended. Returns true if it has ended.
  std::function<bool(std::chrono::milliseconds)> wait_for_end_of_rank;
  Logger log;
};

// Never throws: the result has the error. The snapshot's memory is free afterwards.
SaveResult save(const SaveOrder& order, const SaveEnvironment& environment);

}  // namespace dtrain::checkpoints
