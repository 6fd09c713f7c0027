// What asks the ranks of an attempt to stop. Plain value; the functions are in outcome.cpp.
#pragma once

#include <csignal>
#include <string>

namespace dtrain::run {

// A signal to the launcher, a `dtrain task kill`, or an order to give the slots to another task for a while.
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

}  // namespace dtrain::run
