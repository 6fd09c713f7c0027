// Makes the communicator of a generation for two backends: "thread" (ranks are threads of one process, for tests) and
// "shm" (ranks are processes of one host).
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "dtrain/base/log.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

struct CommunicatorOptions {
  std::chrono::milliseconds timeout{600'000};    // deadline of every wait
  std::chrono::milliseconds warn_after{30'000};  // a wait that takes longer logs a warning
  Logger log;
};

// One communicator for each rank, for `world_size` threads of this process. Only thread i uses element i.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int world_size,
                                                                     const CommunicatorOptions& options);

// Collective over `control`. All its ranks must be on one host, and it must outlive the communicator. A failure that it
// reports aborts the communicator. Error messages name rank i by members[i], its number in the run; without members, by
// i.
std::unique_ptr<Communicator> make_shm_communicator(ControlPlane& control, const CommunicatorOptions& options,
                                                    const std::vector<int>& members = {});

}  // namespace dtrain::comm
