// SIGUSR2 asks a run in progress for a trace of its next batches. `dtrain trace RUN --now` sends it to rank 0 with the
// number of batches as its value; `kill -USR2` sends no value. One object per process.
#pragma once

#include <csignal>
#include <optional>

namespace dtrain::run {

class TraceSignal {
 public:
  TraceSignal();
  ~TraceSignal();  // restores the previous handler
  TraceSignal(const TraceSignal&) = delete;
  TraceSignal& operator=(const TraceSignal&) = delete;
  // The number of batches asked for since the last call (0: no number was given); empty: no request. Any thread.
  static std::optional<int> take();

 private:
  struct sigaction before_ {};
};

}  // namespace dtrain::run
