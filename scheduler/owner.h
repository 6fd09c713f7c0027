// Identifies a process so that no later one with its number is taken for it, and finds out whether it still lives. Any
// thread. Private to scheduler.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace dtrain::scheduler {

// Where processes have the same numbers.
struct Place {
  std::string boot;        // the boot id of the machine
  std::string namespace_;  // its PID namespace
  bool operator==(const Place&) const = default;
};

Place this_place();

struct ProcessKey {
  Place place;
  pid_t pid = 0;
  std::uint64_t ticks = 0;  // when it started
};

ProcessKey key_of(pid_t pid, const Place& here);

enum class Life { kAlive, kGone, kUnknown };  // unknown: it lives, or lived, where this process cannot see it

Life life_of(const ProcessKey& process, const Place& here);

// Whether a rank of this launcher (or what starts its ranks: mpirun) lives, also one missing from the ledger: a process
// of this user that carries the launcher's mark (rank_mark.h) and was started as ranks are, in a group of its own in
// the launcher's session. What a rank's program leaves running has inherited the mark at most, and is none.
bool has_ranks(const ProcessKey& launcher);

// Sends SIGKILL, to this process and no later one.
void kill_process(const ProcessKey& process, const Place& here);

}  // namespace dtrain::scheduler
