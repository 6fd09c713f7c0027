// Which process is meant, so that no later one is taken for it, and whether it is still there. Any thread. Private to
// scheduler.
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

// A process of this user that was handed to a rank of this launcher, whether or not anybody has written that down.
// Ranks carry the pid of their launcher in their environment.
bool has_ranks(pid_t launcher);

// Sends SIGKILL, to this process and no later one.
void kill_process(const ProcessKey& process, const Place& here);

}  // namespace dtrain::scheduler
