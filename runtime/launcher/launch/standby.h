// The waiting process of this host, from which new ranks are forked after a failure (recovery.standby). One thread.
#pragma once

#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/base/nursery.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::launcher {

struct Attempt;

// Of all attempts of a launch.
class Standby {
 public:
  struct Started {
    Process process;
    bool is_fork = false;
  };
  // Starts a rank: a fork of the waiting process, or a new process of the command where none is ready.
  Started start(const ProcessOptions& rank);
  // Called again and again while all ranks run. Starts the waiting process when they have run for a while, again if it
  // was killed, and writes events about it.
  void look_after(const Attempt& attempt);

 private:
  void begin(const Attempt& attempt);
  void follow(const Attempt& attempt);

  std::optional<ProcessOptions> first_rank_;  // of the attempt, without its file descriptors and its own variables
  std::optional<Nanoseconds> due_;
  std::optional<Nursery> nursery_;
  Nanoseconds began_{0};
  bool is_ready_ = false;
  int starts_ = 0;
};

}  // namespace dtrain::launcher
