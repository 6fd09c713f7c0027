// The state of a run, from its events. Any thread.
#pragma once

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// True if the run has ended, or none of its processes is left on this host.
bool is_over(const RunFolder& folder);

// The newest run under ./runs that is in progress; a queued one only if none has started. ConfigError: there is none.
RunFolder newest_running();

}  // namespace dtrain::run
