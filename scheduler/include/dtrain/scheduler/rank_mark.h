// The mark that a launcher gives to every process that will use its slots. With it the ledger finds such a process even
// if the launcher was killed before it could record the process. Any thread.
#pragma once

#include <string>

#include <sys/types.h>

#include "dtrain/host/processes.h"

namespace dtrain::scheduler {

using host::kRankMark;

// Returns the mark for the processes that a launcher starts: the launcher's pid and start time (because another process
// may get the same pid later), and its session.
std::string rank_mark(pid_t launcher);

}  // namespace dtrain::scheduler
