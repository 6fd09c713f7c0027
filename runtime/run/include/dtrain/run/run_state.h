// What a run's events say about it. Any thread.
#pragma once

#include "dtrain/run/run_folder.h"

namespace dtrain::run {

// True when the run has ended, or none of its processes is left on this host.
bool is_over(const RunFolder& folder);

// The newest under ./runs that goes on; one that is queued only where none has started. ConfigError: none does.
RunFolder newest_running();

}  // namespace dtrain::run
