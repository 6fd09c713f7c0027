// The ranks of a run on this machine, each a child of this process with a link of its own (rank_process.h). One thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/profile/agent_process.h"
#include "dtrain/run/log_tail.h"
#include "launch/outcome.h"
#include "launch/rank_process.h"
#include "launch/run_attempt.h"
#include "launch/watched_ranks.h"

namespace dtrain::run {

class LocalRanks final : public WatchedRanks {
 public:
  explicit LocalRanks(const Attempt& attempt) : attempt_(attempt) {}

  // Starts the profiling agent again when it has died. It must outlive this object.
  void keep_agent(profile::KeptAgent& agent) { agent_ = &agent; }
  // Starts every rank. If one cannot be started, the run has failed, and the watcher ends the others.
  void start(const Handover& handover, const Variables& variables);
  // How the run ended. Called once the watcher has seen the last rank end.
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
  void look_after_agent();
  void fail(Failure failure);
  void signal_all(int signal);

  const Attempt& attempt_;
  profile::KeptAgent* agent_ = nullptr;
  std::vector<RankProcess> ranks_;
  LogTail tail_;
  int interrupts_ = 0;
  Interrupt interrupt_;
  std::optional<Failure> failure_;
  Nanoseconds failed_at_{0};
  std::set<int> terminated_;  // ranks that got SIGTERM because of the failure
  std::set<int> killed_;
};

}  // namespace dtrain::run
