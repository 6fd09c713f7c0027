// Asks a run that goes on for a trace of its next steps, by a signal to its rank 0. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

struct RequestedTrace {
  std::int64_t first_batch = 0, last_batch = 0;  // that all ranks agreed on
  std::set<int> written, failed;                 // ranks
};

// Sends the wish, then waits until each rank whose events this folder gets has written its trace. `say` is told what is
// being waited for. ConfigError when the run is over or rank 0 cannot be reached from here; Error when the run refuses,
// or ends before all is written.
RequestedTrace request_trace(const RunFolder& folder, int steps, const std::function<void(const std::string&)>& say);

}  // namespace dtrain::run
