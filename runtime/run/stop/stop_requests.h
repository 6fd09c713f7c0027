// Why a rank should stop after its current step: a signal to this process, a signal to the launcher, or the end of the
// launcher. Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "stop/stop_signals.h"
#include "stop/trace_signal.h"

namespace dtrain::run {

// Handles the signals that ask a rank to stop or to record a trace. Without this object a signal ends the process as
// usual. One object per process.
struct RankSignals {
  StopSignals stop;
  TraceSignal trace;
};

class StopRequests {
 public:
  // The launcher has received `signal` and asks the ranks to stop.
  void launcher_asks(int signal) { launcher_signal_ = signal; }
  // The launcher, `name` in messages, has ended. Returns true on the first call.
  bool launcher_ends(const std::string& name);

  bool launcher_has_ended() const { return launcher_ended_; }
  bool requested() const;
  // "SIGINT", "SIGTERM", or that the launcher is gone; empty if nothing asks for a stop.
  std::string reason() const;

 private:
  std::atomic<int> launcher_signal_{0};
  std::atomic<bool> launcher_ended_{false};
  mutable std::mutex mutex_;
  std::string launcher_;  // guarded by mutex_
};

}  // namespace dtrain::run
