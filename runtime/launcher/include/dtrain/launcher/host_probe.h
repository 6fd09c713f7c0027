// `dtrain host-probe`, which dtrain on another host starts over a remote shell: it describes this host and measures
// connections. It reads one JSON object per line from standard input and answers each on standard output, until the
// input ends. One thread.
#pragma once

#include "dtrain/base/error.h"

namespace dtrain::run {

// Returns the exit code.
ExitCode host_probe();

}  // namespace dtrain::run
