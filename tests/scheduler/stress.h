// The parts of queue_stress: a launcher that queues for slots and starts processes on them, or the launch of `dtrain
// launch` that asks for the same, and the check of what the ledger says afterwards. Every rank holds a lock of its own
// on each slot it uses, which no ledger knows about.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/subprocess.h"
#include "dtrain/scheduler/ledger.h"

namespace dtrain::scheduler::stress {

// All that a stress test shares.
struct Arena {
  std::filesystem::path folder;

  std::filesystem::path state() const { return folder / "state"; }
  std::filesystem::path slot(const std::string& agent, int index) const {
    return folder / (agent + "." + std::to_string(index));
  }
  std::filesystem::path run(unsigned seed) const { return folder / "runs" / std::to_string(seed); }
  std::filesystem::path output(unsigned seed) const { return folder / (std::to_string(seed) + ".out"); }
  std::filesystem::path double_booked() const { return folder / "double-booked"; }  // a line each
};

// What launcher number `seed` asks for. Its run_dir ends in `seed`, so that the request is known from the ledger.
TaskRequest request_of_launcher(unsigned seed);

// Takes the slot's lock, which this process keeps to its end, whatever program it becomes. Where somebody else has it:
// says so in double_booked(), and ends this process.
void hold_slot(const Arena& arena, const std::string& agent, int slot);

// The launcher's and the rank's program: their exit codes. A rank uses its slot for so many milliseconds.
int run_launcher(const Arena& arena, unsigned seed);
int run_rank(const Arena& arena, const std::string& agent, int slot, int milliseconds);

// `dtrain launch` for the request of launcher number `seed`, and what it starts as each rank: the slot's lock, then
// `program` (a null at its end) in this process.
ProcessOptions launch_of(const Arena& arena, unsigned seed);
int run_rank_of_launch(const Arena& arena, char** program);

struct Launcher {
  unsigned seed = 0;
  bool killed = false;
  int exit_code = -1;
};

struct Findings {
  int tasks = 0;
  int done = 0;
  int ended_after_kill = 0;           // failed or cancelled
  std::vector<std::string> problems;  // one line each; none: all is as it should be
};

// After the last launcher has ended and list() shows no task that has not.
Findings check(const Arena& arena, const std::vector<Launcher>& launchers);

}  // namespace dtrain::scheduler::stress
