// Ranks that are processes, each with a GPU that is not there and a communicator over the fake NCCL.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/comm/nccl.h"
#include "harness/fake_gpu.h"
#include "harness/run_processes.h"
#include "nccl/nccl_api.h"

namespace dtrain::test {

// As a launch finds it.
inline constexpr const char* kFakeGpu = DTRAIN_BINARY_DIR "/tests/fake_gpus/libtorch_cuda.so";

// The functions of the fake's CUDA runtime and NCCL.
comm::SharedNcclApi fake_api();

// A variable of this process, and so of the ranks that it starts.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

struct GpuRank {
  comm::ControlPlane& control;
  FakeGpus& gpus;
  comm::SharedNcclApi api;

  // After `world` has set the timeout.
  std::unique_ptr<comm::NcclCommunicator> connect(const TestWorld& world, const comm::NcclOptions& options = {}) const;
};

// Runs fn in `world.size` processes; each sees one GPU of its own, unless CUDA_VISIBLE_DEVICES is set. What a process
// has not expected ends it with an error: an exception, a failed expectation, and a report that fn has not taken.
std::vector<RankOutcome> run_gpu_ranks(const TestWorld& world, const std::function<void(const GpuRank&)>& fn,
                                       const ProcessHooks& hooks = {});
// The same when all must end well.
void expect_gpu_ranks(int ranks, const std::function<void(const GpuRank&)>& fn);

// A communicator of the fake NCCL without the nccl backend around it.
class RawNccl {
 public:
  // Collective.
  explicit RawNccl(const GpuRank& rank);
  ~RawNccl();  // aborts it unless it was closed
  RawNccl(const RawNccl&) = delete;
  RawNccl& operator=(const RawNccl&) = delete;

  const comm::NcclApi& api() const { return api_; }
  ncclComm_t handle() const { return comm_; }
  // What ncclCommGetAsyncError says once it no longer says ncclInProgress.
  ncclResult_t settle() const;
  // A sum of float32 in place, launched when it returns. `stream` is a native handle.
  ncclResult_t all_reduce(void* data, std::size_t count, void* stream) const;
  // Collective.
  void close();
  // It was ended by other means.
  void forget() { comm_ = nullptr; }

 private:
  const comm::NcclApi& api_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace dtrain::test
