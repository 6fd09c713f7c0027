// Asks a run in progress for a trace of its next batches, by a signal to its rank 0. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "dtrain/rank/run_folder.h"

namespace dtrain::run {

struct RequestedTrace {
  std::int64_t first_batch = 0, last_batch = 0;  // the batches that all ranks trace
  std::set<int> written, failed;                 // ranks
};

// Sends the request, then waits until each rank whose events are in this folder has written its trace. Calls `say` once
// the batches are known. ConfigError if the run is over or rank 0 cannot be reached from here; Error if the run
// refuses, or ends before any trace is written.
RequestedTrace request_trace(const RunFolder& folder, int steps, const std::function<void(const std::string&)>& say);

}  // namespace dtrain::run
