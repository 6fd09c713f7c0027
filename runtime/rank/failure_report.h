// After a failure a rank reports the cause, and ends in time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "dtrain/rank/launcher_link.h"
#include "membership.h"
#include "rank_output.h"
#include "rank_start.h"

namespace dtrain::rank {

// Deadlines that end a rank that does not end by itself. Thread safe.

// Ends the process with _exit if it does not end by itself in time.
class ExitTimer {
 public:
  ~ExitTimer() { cancel(); }
  // After `grace` calls `last_words`, then exits with `code`; without a code the process goes on. cancel() prevents
  // both. Only the first call has an effect.
  void arm(std::chrono::milliseconds grace, std::optional<int> code, std::function<void()> last_words);
  // Returns once `last_words` is not running. After that arm() does nothing.
  void cancel();

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false;
  std::thread thread_;
};

// Ends this process if its training thread does not return after a failure elsewhere: a thread that hangs in a kernel
// or a library cannot be woken. The last resort.
class ExitDeadlines {
 public:
  explicit ExitDeadlines(Logger log) : log_(std::move(log)) {}

  // A few seconds; a minute if the rank has left its last step and saves. Training calls give_time_to_save() then,
  // before or after the launcher's end.
  void after_launcher_end();
  void give_time_to_save();
  void after_rank_failure();
  // The host of another rank does not answer. If this host is the one that is cut off, nothing else ends Open MPI's
  // daemon here: this rank soon ends the daemon and itself.
  void after_host_silence(const std::string& cause);

 private:
  void arm_for_saving();

  const Logger log_;
  std::mutex mutex_;
  bool saves_ = false;           // guarded by mutex_
  bool launcher_ended_ = false;  // guarded by mutex_
  ExitTimer launcher_exit_;
  ExitTimer saving_exit_;
  ExitTimer exit_;
  ExitTimer cut_off_;
};

// The cause for which a rank ends before the run is over, and the report of it: to the other ranks, to the launcher or
// the screen, to torchrun, and in the log and events.jsonl.

// The cause for which a rank ends: its own error, or the failure of another rank.
struct FailureCause {
  bool primary = true;        // this rank's own error; false: another rank failed first
  bool agreed = false;        // every rank throws the same error (rank_session.h), and none is to blame
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
  // True once it was reported that another rank has failed first.
  bool follows() const { return follows_; }

 private:
  static void at_exit(int code, void*);
  static void after_unhandled(const std::exception& error);
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
  std::atomic<bool> follows_{false};
  std::function<void(const std::exception&)> fail_;
  ExitTimer timer_;  // uses all of the above
};

}  // namespace dtrain::rank
