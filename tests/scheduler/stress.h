// The parts of queue_stress: a launcher that queues for slots and starts processes on them, and the check of what the
// ledger says afterwards. Every rank holds a lock of its own on each slot it uses, which no ledger knows about.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/scheduler/ledger.h"

namespace dtrain::scheduler::stress {

// All that a stress test shares.
struct Arena {
  std::filesystem::path folder;

  std::filesystem::path state() const { return folder / "state"; }
  std::filesystem::path slot(const std::string& agent, int index) const {
    return folder / (agent + "." + std::to_string(index));
  }
  std::filesystem::path double_booked() const { return folder / "double-booked"; }  // a line each
};

// What launcher number `seed` asks for. Its run_dir says `seed`, so that the request is known from the ledger.
TaskRequest request_of_launcher(unsigned seed);

// The launcher's and the rank's program: their exit codes. A rank uses its slot for so many milliseconds.
int run_launcher(const Arena& arena, unsigned seed);
int run_rank(const Arena& arena, const std::string& agent, int slot, int milliseconds);

struct Launcher {
  pid_t pid = 0;
  bool killed = false;
  int exit_code = -1;
};

struct Findings {
  int tasks = 0;
  int completed = 0;
  int ended_after_kill = 0;           // failed or cancelled
  std::vector<std::string> problems;  // one line each; none: all is as it should be
};

// After the last launcher has ended and list() shows no task that has not.
Findings check(const Arena& arena, const std::vector<Launcher>& launchers);

}  // namespace dtrain::scheduler::stress
