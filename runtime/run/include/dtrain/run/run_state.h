// The state of a run, from its events. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

struct RunState {
  std::optional<ExitCode> exit_code;  // of the run; empty: it has not ended, or its end was not recorded
  std::string alive;                  // one of its processes on this host, "rank 0 (pid 4711)"; empty: none is left
  bool started = false;               // it is no longer queued
  int restarts = 0;                   // automatic ones since the launch, `--continue`, or the last progress
  int continued = 0;                  // the number of continuations by a user
  int trained = -1;                   // `continued` at the time when ranks last began to train; -1: never
  std::optional<std::int64_t> last_saved;  // the batch of the last checkpoint that was saved

  bool is_over() const { return exit_code.has_value() || alive.empty(); }
};
RunState read_state(const RunFolder& folder);

// True if the run has ended, or none of its processes is left on this host.
bool is_over(const RunFolder& folder);

// Finds the newest run under ./runs in progress; a queued one only if none has started. ConfigError: there is none.
RunFolder newest_running();

}  // namespace dtrain::run
