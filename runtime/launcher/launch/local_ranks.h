// The ranks of a run on this machine, each a child of this process with a link of its own. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/monitor_process.h"
#include "dtrain/rank/environment.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/rank/screen.h"
#include "launch/attempts.h"
#include "launch/hanging_ranks.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

// One rank as the launcher sees it: its process, its end of the link, and its messages.
class RankProcess {
 public:
  // Its output goes to `log`. SystemError when the program cannot be started.
  static RankProcess start(const Attempt& attempt, const rank::RankPlacement& placement, rank::Handover handover,
                           const std::filesystem::path& log, const rank::Variables& variables);

  int rank() const { return rank_; }
  Process& process() { return process_; }
  const Process& process() const { return process_; }
  int link_fd() const { return link_.fd(); }

  // Reads the rank's messages. Stores the newest progress in `progress`.
  void read_link(const Attempt& attempt, std::optional<rank::Progress>* progress);
  // True once the process has ended.
  bool reap();
  const std::optional<ExitStatus>& status() const { return status_; }
  const std::optional<rank::ErrorMessage>& error() const { return error_; }
  bool joined() const { return joined_; }      // has connected to the other ranks of this run
  bool finished() const { return finished_; }  // has trained to the end, or stopped as requested
  bool was_asked_to_end() const { return hanging_.has_begun(); }
  bool is_fork() const { return is_fork_; }  // of the waiting process
  // As HangingRanks watches it.
  WatchedRank watched() { return {pulse_.get(), &process_, !status_ && !finished_}; }
  // Ends the process if it hangs. `since`: the time since another rank has failed.
  void end(Nanoseconds since) {
    hanging_.end(process_, since,
                 saves_    ? kPatienceWithSavingRank
                 : joined_ ? kPatienceWithRank
                           : kPatienceWithStartingRank);
  }

 private:
  RankProcess(int rank, Standby::Started started, UnixSocket link)
      : rank_(rank), process_(std::move(started.process)), is_fork_(started.is_fork), link_(std::move(link)) {}
  int rank_;
  Process process_;
  bool is_fork_;
  UnixSocket link_;
  HangingProcess hanging_;
  std::unique_ptr<RankPulse> pulse_;
  bool joined_ = false;
  bool finished_ = false;
  bool saves_ = false;  // the training state, after the failure of another rank
  std::optional<rank::ErrorMessage> error_;
  std::optional<ExitStatus> status_;
};

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
