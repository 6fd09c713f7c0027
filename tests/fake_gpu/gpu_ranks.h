// Ranks that are processes, each with a GPU that is not there and a communicator over the fake NCCL.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

#include "dtrain/comm/nccl.h"
#include "harness/fake_gpu.h"
#include "harness/run_processes.h"
#include "nccl/nccl_communicator.h"

namespace dtrain::test {

inline constexpr const char* kFakeGpu = DTRAIN_BINARY_DIR "/tests/fake_gpu.so";

// The functions of the fake's CUDA runtime and NCCL.
comm::SharedNcclApi fake_api();

struct GpuRank {
  comm::ControlPlane& control;
  FakeGpus& gpus;
  comm::SharedNcclApi api;

  // After `world` has set the timeout.
  std::unique_ptr<comm::NcclCommunicator> connect(const TestWorld& world, const comm::NcclOptions& options = {}) const;
};

// Runs fn in `world.size` processes; each sees one GPU of its own. What a process has not expected ends it with an
// error: an exception, a failed expectation, and a report that fn has not taken.
std::vector<RankOutcome> run_gpu_ranks(const TestWorld& world, const std::function<void(const GpuRank&)>& fn,
                                       const ProcessHooks& hooks = {});
// The same when all must end well.
void expect_gpu_ranks(int ranks, const std::function<void(const GpuRank&)>& fn);

}  // namespace dtrain::test
