// Decides from what each rank does, look by look, that ranks hang. It reads nothing by itself: rank_pulse.h does, and
// tests make up what it sees. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/profile/records.h"

namespace dtrain::launcher {

// What one rank does at one moment.
struct RankSight {
  bool takes_part = true;  // false: it has ended, or has finished the run
  bool stopped = false;    // by SIGSTOP
  bool traced = false;     // by a debugger
  std::uint64_t moves = 0;
  std::int64_t batch = -1, first_batch = -1, epochs_first = -1;  // as in PulsePage; -1: not in training yet
  bool in_batch = false;
  profile::Phase phase = profile::Phase::kOther;
  bool waits = false;       // for other ranks, says the communicator or the control plane
  Nanoseconds in_queue{0};  // the time its training thread could have run so far, and had no core
};

struct Hang {
  std::vector<int> ranks;  // empty: all ranks wait for each other
  Nanoseconds still{0};    // how long they have not got on
};

// Ranks hang if no rank gets on any more, some wait for others, and those do nothing that may take long. The time to
// wait is given, or 20 times the slowest of the last batches and at least 10 s. Nothing is decided in the first batches
// of an attempt: programs compile in two, and three say how long batches take. The first batch of an epoch, callbacks,
// validation and checkpoints may take 20 times as long, and two minutes at least. A rank that is stopped alone is not
// waited for in this way.
//
// Time does not count in which this process itself was not there (stopped, or the machine suspended), in which all
// ranks are stopped, or any of them is in a debugger, or in which a rank had no core.
class HangWatch {
 public:
  // `limit`: empty: auto.
  HangWatch(std::optional<Nanoseconds> limit, const Clock& clock) : given_(limit), clock_(clock) {}

  // Empty: no rank hangs. Called several times a second, always with the same number of ranks.
  std::optional<Hang> look(std::span<const RankSight> sights);
  // Returns the time after which a rank hangs, as things are.
  Nanoseconds limit() const;

 private:
  struct Watched {
    RankSight last;
    Nanoseconds since{0};                 // when it got on last
    std::optional<Nanoseconds> in_queue;  // by its first sight without a move
    Nanoseconds own{0};                   // what it has spent in its batches since `batch`, without waits
    std::int64_t batch = -1;
    std::deque<Nanoseconds> batches;  // the last of them
  };

  void follow(Watched& rank, const RankSight& sight, Nanoseconds now);
  void begin_anew(std::span<const RankSight> sights, Nanoseconds now);
  bool is_known(const RankSight& sight) const;
  Nanoseconds patience_with(const RankSight& sight) const;

  const std::optional<Nanoseconds> given_;
  const Clock& clock_;
  std::optional<Nanoseconds> last_look_;
  std::vector<Watched> ranks_;
};

}  // namespace dtrain::launcher
