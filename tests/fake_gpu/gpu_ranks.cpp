#include "gpu_ranks.h"

#include <cstdlib>
#include <stdexcept>

namespace dtrain::test {

comm::SharedNcclApi fake_api() {
  comm::NcclLibraries libraries;
  libraries.nccl = libraries.cuda = kFakeGpu;
  return comm::open_nccl(libraries);
}

std::unique_ptr<comm::NcclCommunicator> GpuRank::connect(const TestWorld& world,
                                                         const comm::NcclOptions& options) const {
  return comm::make_nccl_communicator_with(api, control, options, world.communicator_options());
}

std::vector<RankOutcome> run_gpu_ranks(const TestWorld& world, const std::function<void(const GpuRank&)>& fn,
                                       const ProcessHooks& hooks) {
  const auto rank_process = [&](comm::ControlPlane& control, comm::Communicator&) {
    ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(control.world().rank).c_str(), 1);
    FakeGpus& gpus = open_fake_gpus(kFakeGpu, world.size);  // not before the fork: device memory is shared memory
    fn({control, gpus, fake_api()});
    for (const std::string& report : gpus.take_reports()) ADD_FAILURE() << report;
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("rank " + std::to_string(control.world().rank) + " has failed expectations");
    }
  };
  return run_processes(world, rank_process, hooks);
}

void expect_gpu_ranks(int ranks, const std::function<void(const GpuRank&)>& fn) {
  for (const RankOutcome& outcome : run_gpu_ranks(TestWorld(ranks), fn)) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.status.code, 0);
    EXPECT_EQ(outcome.status.signal, 0);
  }
}

}  // namespace dtrain::test
