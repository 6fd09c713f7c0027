// The ranks of one attempt, as the watcher (watcher.h) sees them. They are started and ended in two ways: as children
// of this process (local_ranks.h), or by mpirun or srun (job_ranks.h). One thread.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include <poll.h>

namespace dtrain::run {

// A signal to the launcher, or a `dtrain task kill`.
struct Interrupt {
  std::string why;  // "SIGINT", "dtrain task kill"
  int signal = SIGTERM;
  int count = 1;  // its number, from 1
};

// What the screen shows when an interrupt stops the ranks after their current step.
inline std::string stopping_line(const Interrupt& interrupt) {
  return "dtrain: " + interrupt.why + ": stopping after the current step; a second " + interrupt.why +
         " kills the ranks";
}

class WatchedRanks {
 public:
  virtual ~WatchedRanks() = default;

  // Adds the file descriptors that become readable when take() has something to read.
  virtual void add_descriptors(std::vector<pollfd>& descriptors) const = 0;
  // Reads what has arrived: messages, output, ends of processes. `last`: every rank has ended.
  virtual void take(bool last) = 0;
  // Decides from that whether the run has failed.
  virtual void judge() = 0;
  // The first interrupt stops the ranks after their current step, or kills them if they cannot be asked yet; later ones
  // kill them. Prints which it does.
  virtual void interrupt(const Interrupt& interrupt) = 0;
  // Ends ranks that should have ended by themselves by now.
  virtual void end_what_hangs() = 0;

  virtual bool all_joined() const = 0;  // every rank has joined the run at some time
  virtual bool has_failed() const = 0;
  virtual bool all_ended() const = 0;
};

}  // namespace dtrain::run
