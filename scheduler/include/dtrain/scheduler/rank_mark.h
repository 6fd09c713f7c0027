// The mark that a launcher gives every process that is to use its slots: by it the ledger finds such a process even if
// the launcher was killed before it had recorded it. Any thread.
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
