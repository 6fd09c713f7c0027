// The ranks of one attempt, as the watcher (watcher.h) sees them. There are two ways of starting and ending them: as
// children of this process (local_ranks.h), and by mpirun or srun (job_ranks.h). One thread.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include <poll.h>

namespace dtrain::run {

// A signal to the launcher, or `dtrain task kill`.
struct Interrupt {
  std::string why;  // "SIGINT", "dtrain task kill"
  int signal = SIGTERM;
  int count = 1;  // which one it is, from 1
};

// What the screen shows when an interrupt stops the ranks after their current step.
inline std::string stopping_line(const Interrupt& interrupt) {
  return "dtrain: " + interrupt.why + ": stopping after the current step; once more to kill the ranks";
}

class WatchedRanks {
 public:
  virtual ~WatchedRanks() = default;

  // The descriptors that become readable when take() has something to take.
  virtual void add_descriptors(std::vector<pollfd>& descriptors) const = 0;
  // Takes what has come: messages, output, ends of processes. `last`: nothing comes after it.
  virtual void take(bool last) = 0;
  // Finds out from that whether the run has failed.
  virtual void judge() = 0;
  // Stops the ranks after their step at the first interrupt, as far as they can hear of it, and kills them later. Says
  // on the screen which.
  virtual void interrupt(const Interrupt& interrupt) = 0;
  // Ends ranks that should have ended by themselves after a failure.
  virtual void end_what_hangs() = 0;

  virtual bool all_joined() const = 0;  // every rank has come up as one of this run, at some time
  virtual bool has_failed() const = 0;
  virtual bool all_ended() const = 0;
};

}  // namespace dtrain::run
