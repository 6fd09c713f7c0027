// What asks the ranks of a run to stop: a signal to the launcher, a `dtrain task kill`, or an order to give the slots
// to another task for a while.
#pragma once

#include <csignal>
#include <optional>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::run {

struct Interrupt {
  std::string why;       // "SIGINT", "dtrain task kill", "preempted by task 7 (mnist)"; empty: nothing asks
  int signal = SIGTERM;  // the ranks act as after this one: SIGINT, a person ends the run; SIGTERM, it goes on later
  int count = 1;         // its number, from 1
  bool yields = false;   // the launch waits in the queue again and goes on
  bool repeats = false;  // the ranks are stopping already, because of an order to yield

  bool exists() const { return !why.empty(); }
};

// What the screen shows when an interrupt stops the ranks after their current step.
std::string stopping_line(const Interrupt& interrupt);

// The exit code of a run that was asked to stop, from the highest exit code of its ranks.
int exit_code_of_stop(const Interrupt& interrupt, int of_ranks);

// SIGINT, SIGTERM and SIGHUP (unless nohup ignores it) of a launcher, read from a file descriptor instead of ending the
// process. In effect while the object exists, on the thread that made it. Construct before other threads exist.
class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  int fd() const { return fd_.get(); }  // readable (poll) when a signal has arrived
  // The next signal that has arrived.
  std::optional<int> next();

 private:
  sigset_t set_{};
  UniqueFd fd_;
};

// "SIGINT"
std::string signal_name(int signal);

}  // namespace dtrain::run
