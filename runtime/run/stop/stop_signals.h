// SIGTERM and SIGINT ask a rank to stop after its current step. Another one ends it at once if it comes at least a
// second later; signals that arrive together (at a whole control group) count as one. One object per process.
#pragma once

#include <csignal>

namespace dtrain::run {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the previous handlers
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The first signal that arrived, or 0. Any thread.
  static int received();

 private:
  struct sigaction term_before_ {};
  struct sigaction int_before_ {};
};

}  // namespace dtrain::run
