// Ranks as processes of their own, forked from the test: for what only processes can show (memory of others, death).
// Call it while the test has one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dtrain/base/subprocess.h"
#include "harness/run_ranks.h"

namespace dtrain::test {

struct RankOutcome {
  ExitStatus status;
  std::string error;  // what the exception said that ended fn
};

struct ProcessHooks {
  // Called in the test's process once all ranks have their communicator, with their pids.
  std::function<void(const std::vector<pid_t>&)> running{};
  // In each rank's process: makes its communicator; empty: a shm communicator.
  std::function<std::unique_ptr<comm::Communicator>(comm::ControlPlane&)> communicator{};
};

// Each rank has a control plane and a communicator; a rank whose fn throws publishes the failure first, then exits
// with 1. All are reaped when this returns; ranks still there 60 s after `running` are killed.
std::vector<RankOutcome> run_processes(const TestWorld& world,
                                       const std::function<void(comm::ControlPlane&, comm::Communicator&)>& fn,
                                       const ProcessHooks& hooks = {});

}  // namespace dtrain::test
