// Watches the ranks of a run from start to end: shows their logs and progress, stops the others when one fails, passes
// interrupts on. One thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/run/log_tail.h"
#include "dtrain/run/run_folder.h"
#include "folder/event_log.h"
#include "folder/screen.h"
#include "launch/outcome.h"
#include "launch/rank_process.h"
#include "launch/run_attempt.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

class Supervisor {
 public:
  // Uses all that is in it.
  explicit Supervisor(const Attempt& attempt);

  // Ranks cannot come up without it: from now on, until all have, its end is the run's. It must outlive this.
  void watch_agent(Process& agent) { agent_ = &agent; }
  // Starts every rank. SystemError names the program that cannot be started; ranks already started are killed.
  void start_ranks(const Handover& handover, const Variables& variables);
  // Until the last rank has ended.
  Outcome watch();
  // Every rank has come up as one of this run, at some time.
  bool all_joined() const;

 private:
  void wait_for_events();
  void read_links();
  void show_logs(bool last);
  void take_signals();
  void obey_kills();
  void interrupt(const std::string& why);
  void reap();
  bool agent_matters() const { return agent_ != nullptr && !all_joined() && interrupts_ == 0 && !failure_; }
  void look_after_agent();
  void tell_state();
  void judge(RankProcess& rank);
  void fail(Failure failure);
  void stop_the_rest();
  bool all_ended() const;
  void signal_all(int signal);
  void event(const std::string& name, const Json& fields);
  Outcome outcome();

  const LaunchPlan& plan_;
  const RunFolder& folder_;
  EventLog& events_;
  Screen& screen_;
  const Clock& clock_;
  LaunchSignals& signals_;
  LaunchTask& task_;
  Process* agent_ = nullptr;
  std::vector<RankProcess> ranks_;
  LogTail tail_;
  int interrupts_ = 0;
  int kills_ = 0;  // those of `dtrain task kill` among the interrupts
  std::string interrupted_by_;
  bool running_ = false;  // all ranks have joined
  std::optional<Failure> failure_;
  Nanoseconds failed_at_{0};
  std::set<int> terminated_;  // ranks that SIGTERM was sent to because of the failure
  std::set<int> killed_;
};

}  // namespace dtrain::run
