// The work of the process dtrain-saver.
#pragma once

#include <sys/types.h>

#include "dtrain/base/log.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/saver.h"
#include "storage_folder.h"

namespace dtrain::checkpoints {

// Saves what it is asked to until the rank that started it, the process `starter`, is gone. SystemError.
void serve(const SaverOptions& options, UnixSocket socket, UniqueFd memory, StorageLock lock, pid_t starter,
           const Logger& log);

}  // namespace dtrain::checkpoints
