// The cause for which a rank ends before the run is over, and the report of it: to the other ranks, to the launcher or
// the screen, to torchrun, and in the log and events.jsonl.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/launcher_link.h"
#include "exit_deadlines.h"
#include "membership.h"
#include "rank_identity.h"
#include "rank_output.h"

namespace dtrain::run {

// The cause for which a rank ends: its own error, or the failure of another rank.
struct FailureCause {
  bool primary = true;        // this rank's own error; false: another rank failed first
  bool agreed = false;        // every rank throws the same error (agreed_error.h), and none is to blame
  std::int64_t step = -1;     // the batch this rank was in
  comm::RankFailure failure;  // the failure that ended the run
  std::string remedy;         // for this rank's own error
};

// `control` is null before the ranks are connected. If the end of a peer broke a collective, waits up to a second until
// the control plane knows the cause.
FailureCause find_cause(const std::exception& error, int rank, std::int64_t step, comm::ControlPlane* control);

// "rank 1 failed at batch 7: …", for the log and the screen, as rank `rank` of `world_size` reports it. `repeats`: a
// rank that follows another one gives its cause, too, because the screen of that rank is another one.
std::string failure_message(const FailureCause& cause, int rank, int world_size, bool repeats = false);

// Parts of a rank are passed in as soon as they exist; before that the report goes to standard error.
class FailureReport {
 public:
  // The arguments must outlive this object. The set_ functions are called during the start, before another thread can
  // call report().
  FailureReport(const RankIdentity& identity, RankEvents& events, const Clock& clock, Logger log)
      : identity_(identity), events_(events), clock_(clock), log_(std::move(log)) {}
  ~FailureReport();
  void set_membership(Membership& membership) { membership_ = &membership; }
  void set_launcher(LauncherLink& link) { link_ = &link; }
  // `log_file`: where the redirected output goes.
  void set_output(LogRedirect& output, const std::filesystem::path& log_file);

  // From now on exit() of this process before the end of the run is a failure: `fail` is called with the error, in the
  // thread that called exit(), and the process ends with the code of exit() without the destruction of static objects,
  // which threads of the run still use. After the end of the run the process ends as usual; if a thread that the
  // program has left running crashes meanwhile, standard error says so, and the process ends with the code of exit().
  // At most one object of a process may watch at a time.
  void watch_exit(std::function<void(const std::exception&)> fail);

  // Sets the batch this rank is in, for the report. Any thread.
  void set_step(std::int64_t batch);
  std::int64_t step() const { return step_.load(); }

  // Reports once: only the first call counts, and none after close(). Any thread. Returns once the other ranks have the
  // cause (after two seconds at most), so that the process may end.
  void report(const std::exception& error);
  // Another rank has failed and mpirun will soon kill this one: reports shortly on a thread of its own, unless the
  // training thread has reported by then.
  void report_before_mpirun_kills(const comm::RankFailure& failure);
  // Waits for a report that this thread is making, and prevents later ones.
  void stop_timer() { timer_.cancel(); }
  // The run is over: report() does nothing from now on.
  void close();

 private:
  static void at_exit(int code, void*);
  static void register_at_exit();
  void inform_ranks(const FailureCause& cause);
  void inform_launcher(const FailureCause& cause);
  void inform_torchrun(const std::string& text);
  void write_events(const FailureCause& cause);
  bool speaks_for_all(const FailureCause& cause) const;
  void print(const std::string& text, bool primary, bool on_screen);

  const RankIdentity& identity_;
  RankEvents& events_;
  const Clock& clock_;
  const Logger log_;
  Membership* membership_ = nullptr;
  LauncherLink* link_ = nullptr;
  LogRedirect* output_ = nullptr;
  std::string log_file_;
  std::atomic<std::int64_t> step_{-1};
  std::atomic<bool> closed_{false};
  std::function<void(const std::exception&)> fail_;
  ExitTimer timer_;  // uses all of the above
};

}  // namespace dtrain::run
