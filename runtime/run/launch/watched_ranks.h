// The ranks of one attempt, as the watcher (watcher.h) sees them. They are started and ended in two ways: as children
// of this process (local_ranks.h), or by mpirun or srun (job_ranks.h). One thread.
#pragma once

#include <vector>

#include <poll.h>

#include "launch/outcome.h"

namespace dtrain::run {

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
  // kill them. One that repeats an order to yield changes only what the outcome says. Prints which it does.
  virtual void interrupt(const Interrupt& interrupt) = 0;
  // Ends ranks that should have ended by themselves by now.
  virtual void end_what_hangs() = 0;

  virtual bool all_joined() const = 0;  // every rank has joined the run at some time
  virtual bool has_failed() const = 0;
  virtual bool all_ended() const = 0;
};

}  // namespace dtrain::run
