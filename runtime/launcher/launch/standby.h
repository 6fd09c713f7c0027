// What waits on this host for new ranks after a failure: a process from which they are forked (recovery.standby), and
// memory that earlier ranks have shared. One thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/nursery.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/rank/environment.h"

namespace dtrain::launcher {

struct Attempt;

// Of all attempts of a launch.
class Standby {
 public:
  struct Started {
    Process process;
    bool is_fork = false;
  };
  // Starts a rank: a fork of the waiting process, or a new process of the command where none is ready. The first rank
  // of a script waits for the interpreter from which all of them are forked.
  Started start(const Attempt& attempt, const ProcessOptions& rank);
  // Called again and again while all ranks run. Starts the waiting process when they have run for a while, again if it
  // was killed, and writes events about it.
  void look_after(const Attempt& attempt);

  // Keeps memory that a rank has sent, if ranks may be started again.
  void keep(const Attempt& attempt, const std::string& name, UniqueFd memory);
  // Adds the kept memory to what a rank is started with.
  void hand_over_memory(ProcessOptions& options, rank::Handover& handover) const;

 private:
  void await(const Attempt& attempt);
  void begin(const Attempt& attempt, Nursery::Loading loading);
  void follow(const Attempt& attempt);

  std::optional<ProcessOptions> first_rank_;  // of the attempt, without its file descriptors and its own variables
  std::optional<Nanoseconds> due_;
  std::optional<Nursery> nursery_;
  Nanoseconds began_{0};
  bool is_ready_ = false;
  int starts_ = 0;
  std::map<std::string, UniqueFd> memory_;
};

}  // namespace dtrain::launcher
