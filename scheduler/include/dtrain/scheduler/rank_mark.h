// What a launcher gives every process that is to use its slots, so that the ledger knows such a process for what it is
// although the launcher was killed before it had written it down. Any thread.
#pragma once

#include <string>

#include <sys/types.h>

namespace dtrain::scheduler {

// The variable. A rank takes it out of its environment when it comes up: what it starts in turn is no rank.
inline constexpr const char* kRankMark = "DTRAIN_LAUNCHED_BY";

// Its value for what that launcher starts: which process it is (a number alone may be another's later), and its
// session.
std::string rank_mark(pid_t launcher);

}  // namespace dtrain::scheduler
