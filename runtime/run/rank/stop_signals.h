// SIGTERM and SIGINT ask a rank to stop after its current step; a second one, a second later or more, ends it at once
// (signals that come together, to a whole control group say, count as one). One object a process.
#pragma once

#include <csignal>

namespace dtrain::run {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores what was there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The first signal that came, or 0. Any thread.
  static int received();

 private:
  struct sigaction term_before_ {};
  struct sigaction int_before_ {};
};

}  // namespace dtrain::run
