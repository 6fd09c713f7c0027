// The recoveries of a run: how long each takes and what it repeats, from the failure to the end of the first new batch,
// over as many attempts as that needs; and whether the run fails at the same place again and again. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/analysis/batch_times.h"
#include "dtrain/base/clock.h"
#include "launch/attempts.h"

namespace dtrain::launcher {

class Recoveries {
 public:
  explicit Recoveries(const RunningLaunch& running) : running_(running) {}

  // An attempt begins after `from_batch` batches.
  void begin_attempt(int number, std::int64_t from_batch, const PlacedLaunch& placed);
  // The attempt follows one that has failed, or that has lost a host.
  bool recovers() const { return pending_.has_value(); }
  bool lost_host() const { return lost_host_; }
  // The ranks have found a later state than that.
  void goes_on_from(std::int64_t batch);
  std::int64_t began_at() const { return from_; }
  // These three keep the first time at which they are called in an attempt.
  void ranks_started();
  void ranks_joined();
  void failure_noticed();
  void take(const rank::Progress& progress);
  // Tells of the recovery once the records have the end of the first new batch.
  void look();
  // All processes of the attempt have ended, and its records are in their usual place.
  void end_attempt();

  // Returns how many batches the run has done at most.
  std::int64_t batches_done() const { return done_; }
  // Counts the faults of the attempt that has ended. Returns the failure that ends the run if one of them has happened
  // three times at a batch that its rank has never got past.
  std::optional<Failure> repeated(const Failure& failure);
  // The next attempt recovers from this failure.
  void recover_from(const Failure& failure);
  // The run gives up its slots for a while, which is no recovery.
  void give_up() { pending_.reset(); }

 private:
  // What has failed, until a new batch has ended.
  struct Pending {
    Failure failure;
    std::string host;                        // of the failed rank; empty: not a rank
    Nanoseconds noticed{0};                  // the first failure since the last new batch
    Nanoseconds ended{0};                    // the last attempt that has failed
    std::optional<std::int64_t> last_batch;  // the end of the last batch before, in ns of the monotonic clock
  };
  struct Fault {
    int rank;
    std::int64_t batch;
    std::string cause;
    auto operator<=>(const Fault&) const = default;
  };
  std::optional<std::int64_t> batch_of(int rank) const;
  void tell();

  const RunningLaunch& running_;
  int attempt_ = 0;
  std::int64_t from_ = 0;
  bool one_host_ = true;  // the ranks' clocks are this process's
  const PlacedLaunch* placed_ = nullptr;
  analysis::BatchTimes times_{{}, 0};
  std::optional<Nanoseconds> started_, joined_, noticed_;
  std::optional<Nanoseconds> reached_;  // progress has shown a new batch
  std::int64_t done_ = 0;
  std::optional<Pending> pending_;
  bool lost_host_ = false;  // by the last failure
  std::map<Fault, int> faults_;
};

}  // namespace dtrain::launcher
