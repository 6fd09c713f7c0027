// The mark that a launcher gives to every process that will use its slots. With it the ledger finds such a process even
// if the launcher was killed before it could record the process. Any thread.
#pragma once

#include <string>

#include <sys/types.h>

namespace dtrain::scheduler {

// The environment variable. A rank removes it when it starts, because its own children are no ranks.
inline constexpr const char* kRankMark = "DTRAIN_LAUNCHED_BY";

// Returns the mark for the processes that a launcher starts: the launcher's pid and start time (because another process
// may get the same pid later), and its session.
std::string rank_mark(pid_t launcher);

}  // namespace dtrain::scheduler
