// The ranks of a run on this machine, each a child of this process with a link of its own. One thread.
#pragma once

#include <optional>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/monitor_process.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/screen.h"
#include "launch/attempts.h"
#include "launch/hanging_ranks.h"
#include "launch/rank_process.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

class LocalRanks final : public WatchedRanks {
 public:
  explicit LocalRanks(const Attempt& attempt)
      : attempt_(attempt),
        hanging_(attempt.placed.experiment.recovery, attempt.folder, attempt.events, attempt.clock) {}

  // Starts the monitor again when it has died. It must outlive this object.
  void keep_monitor(profile::KeptMonitor& monitor) { monitor_ = &monitor; }
  // Starts every rank. If one cannot be started, the run has failed, and the watcher ends the others.
  void start(const rank::Handover& handover, const rank::Variables& variables);
  // Returns how the run ended. Called once the watcher has seen the last rank end.
  Outcome outcome();

  void add_descriptors(std::vector<pollfd>& descriptors) const override;
  void take(bool last) override;
  void judge() override;
  void interrupt(const Interrupt& interrupt) override;
  void end_what_hangs() override;
  bool all_joined() const override;
  bool has_failed() const override { return failure_.has_value(); }
  bool all_ended() const override;

 private:
  void reap();
  void read_links();
  void show_logs(bool last);
  void look_after_monitor();
  void look_for_hangs();
  void fail(Failure failure);
  void signal_all(int signal);

  const Attempt& attempt_;
  profile::KeptMonitor* monitor_ = nullptr;
  std::vector<RankProcess> ranks_;
  rank::LogTail tail_;
  HangingRanks hanging_;
  host::MemoryKills kills_;  // before the first rank was started
  int interrupts_ = 0;
  Interrupt interrupt_;
  std::optional<Failure> failure_;
  Nanoseconds failed_at_{0};
};

}  // namespace dtrain::launcher
