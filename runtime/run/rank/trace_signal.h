// SIGUSR2 asks a run that goes on for a trace of its next steps. `dtrain trace RUN --now` sends it to rank 0 with the
// number of steps as its value; `kill -USR2` sends none. One object a process.
#pragma once

#include <csignal>
#include <optional>

namespace dtrain::run {

class TraceSignal {
 public:
  TraceSignal();
  ~TraceSignal();  // restores what was there before
  TraceSignal(const TraceSignal&) = delete;
  TraceSignal& operator=(const TraceSignal&) = delete;
  // The steps asked for since the last call (0: no number was given). Any thread.
  static std::optional<int> take();

 private:
  struct sigaction before_ {};
};

}  // namespace dtrain::run
