// Ranks as threads of the test: quick, and every sanitizer sees them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::test {

// Calls fn(rank) on n threads at once and waits for all; then rethrows the exception of the lowest rank that threw.
void run_ranks(int n, const std::function<void(int rank)>& fn);

// What every rank of a test world agrees on; on one host, with an endpoint found when rank 0 serves.
struct TestWorld {
  explicit TestWorld(int world_size) : size(world_size) {}
  comm::ControlOptions control_options(int rank) const;
  comm::CommunicatorOptions communicator_options() const;

  int size;
  std::chrono::milliseconds timeout{30'000};
  std::chrono::milliseconds heartbeat{100};
  std::uint32_t generation = 0;
  std::string secret = "a secret for tests only";
  comm::Security security = comm::Security::kProof;
  std::string session = "test";
  std::string host = "test-host";
  std::vector<std::string> hosts;  // by rank, where they differ
};

// The same with a control plane for each rank, which is finished after fn unless the run failed.
void run_control_ranks(const TestWorld& world, const std::function<void(comm::ControlPlane&)>& fn);

// The same with a communicator of the named backend, "thread" or "shm". Each rank still is a thread.
void run_communicator_ranks(const TestWorld& world, const std::string& backend,
                            const std::function<void(comm::Communicator&)>& fn);

// Makes a communicator for each of `world_size` ranks, which are threads of this process. Only thread i uses element i.
std::vector<std::unique_ptr<comm::Communicator>> make_thread_communicators(int world_size,
                                                                           const comm::CommunicatorOptions& options);

}  // namespace dtrain::test
