// The nccl backend on the GPUs of this machine, real ones where there are any: ranks as processes, each on a GPU of its
// own, through the module, NCCL and the CUDA runtime as a rank of a run opens them. The conformance suite runs on
// memory of the host, which the backend stages; bench_nccl checks registered memory of the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/nccl.h"
#include "harness/conformance.h"
#include "harness/forwarding_communicator.h"
#include "harness/run_processes.h"
#include "nccl/nccl_api.h"

namespace dtrain::test {
namespace {

using comm::Buffer;
using comm::Communicator;

// Another process asks CUDA: after a process has asked, its forks cannot.
int count_gpus() {
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    try {
      const comm::SharedNcclApi api = comm::open_nccl();
      if (api->cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    } catch (const Error&) {
      count = 0;
    }
    ::_exit(count);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// The suite reads and writes Buffers on the host, so its Buffers are the host's.
class HostBuffers final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override { return std::make_unique<Host>(bytes); }

 private:
  class Host final : public Buffer {
   public:
    explicit Host(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)), bytes_(bytes) {}
    std::span<std::byte> bytes() override { return {lines_.data()->bytes, bytes_}; }

   private:
    struct alignas(64) Line {
      std::byte bytes[64] = {};
    };
    std::vector<Line> lines_;
    std::size_t bytes_;
  };
};

TEST(NcclOnGpus, ConformanceSuite) {
  const int gpus = count_gpus();
  if (gpus == 0) GTEST_SKIP() << "CUDA shows no GPU here";
  std::vector<int> worlds{1, 2, gpus};
  std::erase_if(worlds, [&](int ranks) { return ranks > gpus; });
  worlds.erase(std::unique(worlds.begin(), worlds.end()), worlds.end());
  const auto cases = conformance_cases(
      {.rank_order = false, .wide_sums = false, .exact_scaling = false, .nan_wins = false, .every_reduction = false});
  for (const int ranks : worlds) {
    TestWorld world(ranks);
    const auto body = [&](comm::ControlPlane& control, Communicator&) {
      const auto communicator =
          comm::make_nccl_communicator(control, {.device = control.world().rank}, world.communicator_options());
      HostBuffers host(*communicator);
      for (const ConformanceCase& one : cases) {
        SCOPED_TRACE(one.name + " on " + std::to_string(ranks) + " GPUs");
        one.run(host);
      }
      if (testing::Test::HasFailure()) throw std::runtime_error("expectations have failed");
    };
    for (const RankOutcome& outcome : run_processes(world, body)) {
      EXPECT_EQ(outcome.error, "") << ranks << " ranks";
      EXPECT_TRUE(outcome.status.success()) << ranks << " ranks: " << outcome.status.describe();
    }
    std::printf("%zu cases on %d of %d GPUs\n", cases.size(), ranks, gpus);
    std::fflush(stdout);  // before the next fork
  }
}

}  // namespace
}  // namespace dtrain::test
