// Identifies a process so that no later process with the same pid is taken for it, and tests whether it still lives.
// Any thread. Private to scheduler.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace dtrain::scheduler {

// The scope within which a pid identifies a process.
struct Place {
  std::string boot;        // the boot id of the machine
  std::string namespace_;  // its PID namespace
  bool operator==(const Place&) const = default;
};

Place this_place();

struct ProcessKey {
  Place place;
  pid_t pid = 0;
  std::uint64_t ticks = 0;  // its start time
};

ProcessKey key_of(pid_t pid, const Place& here);

enum class Life { kAlive, kGone, kUnknown };  // unknown: this process cannot see the other one's PID namespace

Life life_of(const ProcessKey& process, const Place& here);

// True if a rank of this launcher (or mpirun, which starts ranks) lives, even one that the ledger lacks. A rank is a
// process of this user with the launcher's mark (rank_mark.h) that was started as ranks are, in its own group in the
// launcher's session. A process that a rank's program leaves running is no rank, even if it has inherited the mark.
bool has_ranks(const ProcessKey& launcher);

// Sends SIGKILL to this process, and never to a later one with its pid.
void kill_process(const ProcessKey& process, const Place& here);

}  // namespace dtrain::scheduler
