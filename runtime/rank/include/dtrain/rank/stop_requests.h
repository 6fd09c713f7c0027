// SIGINT, SIGTERM and SIGHUP of a launcher, read from a file descriptor instead of ending the process. SIGINT and
// SIGHUP stay ignored if the process was started so (nohup, a shell script's background job). In effect while the
// object exists, on the thread that made it. Construct before other threads exist.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <optional>
#include <string>

#include "dtrain/base/file.h"

namespace dtrain::rank {

class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable (poll) when a signal has arrived
  // Returns the next signal that has arrived.
  std::optional<int> next();

 private:
  sigset_t set_{};
  UniqueFd fd_;
};

// "SIGINT"
std::string signal_name(int signal);

// The requests that stop a rank after its current step, and the signals that a rank handles.

// SIGTERM, SIGINT and SIGHUP ask a rank to stop after its current step. Another one ends it at once if it comes at
// least a second later; signals that arrive together (at a whole control group) count as one. SIGINT and SIGHUP stay
// ignored if the process was started so (nohup, a shell script's background job). One object per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the previous handlers
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // Returns the first signal that arrived, or 0. Any thread.
  static int received();

 private:
  struct Before {
    int signal;
    struct sigaction action {};
  };
  std::array<Before, 3> before_{{{SIGTERM}, {SIGINT}, {SIGHUP}}};
};

// SIGUSR2 asks a run in progress for a trace of its next batches. `dtrain trace RUN --now` sends it to rank 0 with the
// number of batches as its value; `kill -USR2` sends no value. One object per process.
class TraceSignal {
 public:
  TraceSignal();
  ~TraceSignal();  // restores the previous handler
  TraceSignal(const TraceSignal&) = delete;
  TraceSignal& operator=(const TraceSignal&) = delete;
  // Returns the number of batches requested since the last call (0: no number given); empty: no request. Any thread.
  static std::optional<int> take();

 private:
  struct sigaction before_ {};
};

// Handles the signals that ask a rank to stop or to record a trace. Without this object a signal ends the process as
// usual. One object per process.
struct RankSignals {
  StopSignals stop;
  TraceSignal trace;
};

// The reasons for a rank to stop after its current step: a signal to this process, a signal to the launcher, or the end
// of the launcher. Any thread.
class StopRequests {
 public:
  // The launcher has received `signal` and asks the ranks to stop. 0: a keeper asks, which starts them again.
  void launcher_asks(int signal) { (signal == 0 ? keeper_asks_ : launcher_signal_) = signal == 0 ? 1 : signal; }
  // The launcher, `name` in messages, has ended. Returns true on the first call.
  bool launcher_ends(const std::string& name);

  bool launcher_has_ended() const { return launcher_ended_; }
  bool requested() const;
  // "SIGINT", "SIGTERM", "SIGHUP", or that the launcher is gone; empty if nothing asks for a stop.
  std::string reason() const;
  // The reason where a keeper alone asks for it. The run goes on at once.
  static constexpr const char* kPaused = "other hosts are to take part";

 private:
  std::atomic<int> launcher_signal_{0};
  std::atomic<int> keeper_asks_{0};
  std::atomic<bool> launcher_ended_{false};
  mutable std::mutex mutex_;
  std::string launcher_;  // guarded by mutex_
};

}  // namespace dtrain::rank
