// Finds the ranks of one attempt that hang (hang_watch.h), says what they do, and ends them. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/pulse.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/rank/run_folder.h"
#include "launch/attempts.h"
#include "launch/hang_watch.h"

namespace dtrain::launcher {

// A rank's pulse, as its launcher reads it.
class RankPulse {
 public:
  // `memory`: what the rank has shared. SystemError, or an Error if it is no pulse.
  RankPulse(UniqueFd memory, pid_t pid);

  // Returns what the rank does now. Of a rank that has got on since the last call, /proc is not read.
  RankSight look();
  const PulsePage& page() const { return page_; }
  std::span<const std::byte> memory() const { return memory_.bytes(); }
  pid_t pid() const { return pid_; }

 private:
  SharedMemory memory_;
  const PulsePage& page_;
  pid_t pid_;
  RankSight last_;
};

// One rank to watch.
struct WatchedRank {
  int rank;
  RankPulse* pulse = nullptr;  // null: it has shared none so far
  Process* process = nullptr;
  bool takes_part = true;  // has neither ended nor finished
};

// What is said of a rank that hangs: the stacks of its threads (thread_stacks.cpp).
struct ThreadStacks {
  std::string text;                // all threads, Python's first, the training thread before the others
  std::vector<std::string> calls;  // of the training thread, the innermost first: of Python if it has any, else of C++
  std::string place;               // the innermost of them in the user's own code; empty: not known
};

// Makes the threads of a rank write their stacks, and returns them. A process that is stopped (SIGSTOP) is continued
// for it. Takes a few seconds at most; threads that do not answer are left out. `memory`: the pulse with the text
// behind it.
ThreadStacks take_stacks(pid_t pid, const PulsePage& page, std::span<const std::byte> memory, bool stopped);

// Returns the stacks in a text that the signals' handlers have written. `program`: the name of the process's program;
// `file`: that program, for the names of functions that it does not export.
ThreadStacks read_stacks(std::string_view text, const std::string& program, const std::string& file);

// And the last collectives of the ranks in the form that `python -m torch.distributed.flight_recorder.fr_trace` reads
// (flight_dump.cpp): those that ended, from the monitor's records, and the one in which a rank waits.

// Returns the pickle, protocol 2, of a value of JSON: objects are dicts, arrays are lists.
std::string pickle_of(const Json& value);

// Returns the record of one rank. `records`: the rank's file in profile/, of which the end is read. `page`: null: it
// has shared none.
Json flight_record(const std::filesystem::path& records, int world_size, const PulsePage* page);

class HangingRanks {
 public:
  HangingRanks(const config::Recovery& recovery, const rank::RunFolder& folder, LaunchEvents& events,
               const Clock& clock)
      : watches_(recovery.watches_for_hangs()),
        watch_(recovery.hang_time(), clock),
        folder_(folder),
        events_(events),
        clock_(clock) {}

  // If ranks hang, writes their stacks to logs/hang-rank-N.txt and to their logs, and the last collectives of all ranks
  // to logs/flight_record/; kills them, and returns the failure.
  // Called again and again; looks four times a second.
  std::optional<Failure> look(const std::vector<WatchedRank>& ranks);

 private:
  std::string describe(int rank, const std::vector<WatchedRank>& ranks, const std::vector<RankSight>& sights,
                       const Hang& hang) const;
  void write_flight_records(const std::vector<WatchedRank>& ranks) const;
  std::string write_stacks(int rank, const WatchedRank& watched, bool stopped, const std::string& cause) const;

  const bool watches_;
  HangWatch watch_;
  const rank::RunFolder& folder_;
  LaunchEvents& events_;
  const Clock& clock_;
  Nanoseconds next_look_{0};
};

}  // namespace dtrain::launcher
