#include "gpu_ranks.h"

#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace dtrain::test {

comm::SharedNcclApi fake_api() {
  comm::NcclLibraries libraries;
  libraries.nccl = libraries.cuda = {kFakeGpu};
  return comm::open_nccl(libraries);
}

std::unique_ptr<comm::NcclCommunicator> GpuRank::connect(const TestWorld& world,
                                                         const comm::NcclOptions& options) const {
  return comm::make_nccl_communicator_with(api, control, options, world.communicator_options());
}

std::vector<RankOutcome> run_gpu_ranks(const TestWorld& world, const std::function<void(const GpuRank&)>& fn,
                                       const ProcessHooks& hooks) {
  const bool failed_before = testing::Test::HasFailure();  // the processes inherit that
  const auto rank_process = [&](comm::ControlPlane& control, comm::Communicator&) {
    ::setenv("DTRAIN_RANK", std::to_string(control.world().rank).c_str(), 1);
    ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(control.world().rank).c_str(), 0);
    FakeGpus& gpus = open_fake_gpus(kFakeGpu, world.size);  // not before the fork: device memory is shared memory
    fn({control, gpus, fake_api()});
    for (const std::string& report : gpus.take_reports()) ADD_FAILURE() << report;
    if (testing::Test::HasFailure() && !failed_before) {
      throw std::runtime_error("rank " + std::to_string(control.world().rank) + " has failed expectations");
    }
  };
  return run_processes(world, rank_process, hooks);
}

RawNccl::RawNccl(const GpuRank& rank) : api_(*rank.api) {
  const comm::World& world = rank.control.world();
  ncclUniqueId id{};
  if (world.rank == 0) {
    EXPECT_EQ(api_.ncclGetUniqueId(&id), ncclSuccess);
  }
  static int made = 0;
  const std::string key = "raw/" + std::to_string(made++);
  const std::string first = rank.control.gather(key, std::string(id.internal, sizeof id.internal)).front();
  std::memcpy(id.internal, first.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  EXPECT_EQ(api_.ncclCommInitRankConfig(&comm_, world.size, id, world.rank, &config), ncclInProgress);
  EXPECT_EQ(settle(), ncclSuccess);
}

RawNccl::~RawNccl() {
  if (comm_ != nullptr) {
    EXPECT_EQ(api_.ncclCommAbort(comm_), ncclSuccess);
  }
}

ncclResult_t RawNccl::settle() const {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (const ncclResult_t result = api_.ncclCommGetAsyncError(comm_, &state); result != ncclSuccess) return result;
    std::this_thread::yield();
  }
  return state;
}

ncclResult_t RawNccl::all_reduce(void* data, std::size_t count, void* stream) const {
  const ncclResult_t result =
      api_.ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm_, static_cast<cudaStream_t>(stream));
  return result == ncclInProgress ? settle() : result;
}

void RawNccl::close() {
  EXPECT_EQ(api_.ncclCommFinalize(comm_), ncclInProgress);
  EXPECT_EQ(settle(), ncclSuccess);
  EXPECT_EQ(api_.ncclCommDestroy(std::exchange(comm_, nullptr)), ncclSuccess);
}

void expect_gpu_ranks(int ranks, const std::function<void(const GpuRank&)>& fn) {
  for (const RankOutcome& outcome : run_gpu_ranks(TestWorld(ranks), fn)) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.status.code, 0);
    EXPECT_EQ(outcome.status.signal, 0);
  }
}

}  // namespace dtrain::test
