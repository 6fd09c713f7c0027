// What ranks do, and what is said of those that hang (hang_watch.h), before they are ended. One thread.
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
  // Returns what it waits for, for people; empty: for no other rank.
  std::string wait() const;
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

// What a rank of the run does at one moment, on this host or another one.
struct SeenRank {
  RankSight sight;
  std::string wait;  // for people; empty: it does not wait for others
};
Json to_json(const SeenRank& rank);
SeenRank seen_rank_of(const Json& json);

// Looks at ranks of this host.
std::vector<SeenRank> look_at(const std::vector<WatchedRank>& ranks);
// Returns the ranks that hang, by what all ranks of the run do, in rank order.
std::optional<Hang> find_hang(HangWatch& watch, std::span<const SeenRank> all);

struct HangReport {
  Failure failure;
  std::vector<Json> events;  // "rank_hangs", of each rank of this host that hangs
};

// Writes the last collectives of ranks of this host to logs/flight_record/.
void write_flight_records(const std::vector<WatchedRank>& ranks, std::size_t world_size, const rank::RunFolder& folder);

// Ends the ranks that hang among `ranks`, those of this host. Before that their stacks go to logs/hang-rank-N.txt and
// to their logs. `all`: the ranks of the run, in rank order. Empty: none of `ranks` hangs.
std::optional<HangReport> end_hanging(const Hang& hang, const std::vector<WatchedRank>& ranks,
                                      std::span<const SeenRank> all, const rank::RunFolder& folder);

// The watch over ranks that are all on this host.
class HangingRanks {
 public:
  HangingRanks(const config::Recovery& recovery, const rank::RunFolder& folder, LaunchEvents& events,
               const Clock& clock)
      : watches_(recovery.watches_for_hangs()),
        watch_(recovery.hang_time(), clock),
        folder_(folder),
        events_(events),
        clock_(clock) {}

  // Ends the ranks that hang, and returns the failure. Called again and again; looks four times a second.
  std::optional<Failure> look(const std::vector<WatchedRank>& ranks);

 private:
  const bool watches_;
  HangWatch watch_;
  const rank::RunFolder& folder_;
  LaunchEvents& events_;
  const Clock& clock_;
  Nanoseconds next_look_{0};
};

}  // namespace dtrain::launcher
