// Wrong use of NCCL: what it forbids, or leaves undefined, is an error here and is reported.
#include <torch/torch.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const at::Device kMisused(at::kCUDA, 0);

TEST(FakeNcclMisuse, CallsThatDifferAreAnErrorOnAllRanks) {
  expect_gpu_ranks(3, [](const GpuRank& rank) {
    const RawNccl nccl(rank);
    auto x = at::ones({100}, kMisused);
    EXPECT_EQ(nccl.all_reduce(x.data_ptr(), 100, nullptr), ncclSuccess);
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);
    rank.control.barrier("equal calls");
    static_cast<void>(nccl.all_reduce(x.data_ptr(), rank.control.world().rank == 2 ? 99 : 100, nullptr));
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess || state == ncclInProgress) {
      ASSERT_EQ(nccl.api().ncclCommGetAsyncError(nccl.handle(), &state), ncclSuccess);
    }
    EXPECT_EQ(state, ncclInvalidUsage);
    EXPECT_STREQ(nccl.api().ncclGetLastError(nccl.handle()),
                 "the ranks call different operations as operation 1 of the communicator: rank 0 ncclAllReduce(100 x "
                 "float32, sum), rank 1 ncclAllReduce(100 x float32, sum), rank 2 ncclAllReduce(99 x float32, sum)");
    rank.control.barrier("all have seen it");
  });
}

TEST(FakeNcclMisuse, MemoryThatMustNotBeUsed) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const RawNccl nccl(rank);
    const comm::NcclApi& api = nccl.api();
    void* data = nullptr;
    void* handle = nullptr;
    ASSERT_EQ(api.ncclMemAlloc(&data, 400), ncclSuccess);
    ASSERT_EQ(api.ncclCommRegister(nccl.handle(), data, 400, &handle), ncclSuccess);
    EXPECT_EQ(nccl.all_reduce(data, 100, nullptr), ncclSuccess);
    EXPECT_EQ(nccl.all_reduce(data, 1000, nullptr), ncclInvalidArgument);  // it is shorter
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(AllOf(HasSubstr("ncclAllReduce uses memory of 400 bytes"),
                                                            HasSubstr("is not all allocated"))));
    ASSERT_EQ(api.ncclMemFree(data), ncclSuccess);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("freed too early: ncclAllReduce on stream 0"),
                                                      HasSubstr("is freed while it is registered")));
    EXPECT_EQ(nccl.all_reduce(data, 100, nullptr), ncclInvalidArgument);
    EXPECT_EQ(api.ncclMemFree(data), ncclUnhandledCudaError);
    EXPECT_EQ(api.ncclCommDeregister(nccl.handle(), handle), ncclSuccess);
    EXPECT_EQ(api.ncclCommDeregister(nccl.handle(), handle), ncclInvalidArgument);
    EXPECT_THAT(rank.gpus.take_reports(),
                ElementsAre(HasSubstr("that is not allocated"), HasSubstr("memory that is not registered")));

    ASSERT_EQ(api.ncclMemAlloc(&data, 400), ncclSuccess);
    ASSERT_EQ(api.ncclCommRegister(nccl.handle(), data, 400, &handle), ncclSuccess);
    ASSERT_EQ(api.ncclCommDeregister(nccl.handle(), handle), ncclSuccess);
    EXPECT_EQ(nccl.all_reduce(data, 100, nullptr), ncclInvalidArgument);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("whose registration was taken back")));
    ASSERT_EQ(api.ncclMemFree(data), ncclSuccess);

    auto x = at::ones({100}, kMisused);
    EXPECT_EQ(api.ncclCommRegister(nccl.handle(), x.data_ptr(), 400, &handle), ncclInvalidArgument);
    std::vector<float> host(100);
    EXPECT_EQ(nccl.all_reduce(host.data(), 100, nullptr), ncclInvalidArgument);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("ncclCommRegister of memory that ncclMemAlloc has not"),
                                                      HasSubstr("not all allocated device memory")));
  });
}

TEST(FakeNcclMisuse, GroupsAndCommunicators) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    RawNccl nccl(rank);
    const comm::NcclApi& api = nccl.api();
    auto x = at::ones({100}, kMisused);
    const auto sum = [&](void* data) {
      return api.ncclAllReduce(data, data, 50, ncclFloat32, ncclSum, nccl.handle(), nullptr);
    };
    api.ncclGroupStart();
    EXPECT_EQ(sum(x.data_ptr()), ncclSuccess);
    EXPECT_EQ(sum(x.data_ptr<float>() + 25), ncclSuccess);
    EXPECT_EQ(api.ncclGroupEnd(), ncclInProgress);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("of one group use the same memory")));
    EXPECT_EQ(sum(x.data_ptr()), ncclInvalidUsage);  // the group is in progress
    EXPECT_EQ(nccl.settle(), ncclSuccess);
    EXPECT_EQ(api.ncclGroupEnd(), ncclInvalidUsage);
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id{};
    ncclComm_t other = nullptr;
    ASSERT_EQ(api.ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(api.ncclCommInitRankConfig(&other, 1, id, 0, &blocking), ncclInvalidUsage);
    id.internal[127] ^= 1;
    blocking.blocking = 0;
    EXPECT_EQ(api.ncclCommInitRankConfig(&other, 1, id, 0, &blocking), ncclInvalidArgument);
    EXPECT_EQ(api.ncclCommDestroy(nccl.handle()), ncclSuccess);
    nccl.forget();
    EXPECT_THAT(rank.gpus.take_reports(),
                ElementsAre(HasSubstr("while something before it is in progress"), HasSubstr("without ncclGroupStart"),
                            HasSubstr("non-blocking communicators only"), HasSubstr("all 128 bytes count"),
                            HasSubstr("ncclCommDestroy before ncclCommFinalize")));
  });
}

TEST(FakeNcclMisuse, AStreamOfAnotherDevice) {
  const Variable installed("DTRAIN_FAKE_GPUS", "2"), seen("CUDA_VISIBLE_DEVICES", "0,1");
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const RawNccl nccl(rank);
    auto x = at::ones({100}, kMisused);
    int devices = 0;
    ASSERT_EQ(nccl.api().cudaGetDeviceCount(&devices), cudaSuccess);
    ASSERT_EQ(devices, 2);
    const c10::DeviceGuard on(at::Device(at::kCUDA, 1));
    EXPECT_EQ(nccl.all_reduce(x.data_ptr(), 100, nullptr), ncclInvalidArgument);
    EXPECT_THAT(
        rank.gpus.take_reports(),
        ElementsAre("missing device guard: ncclAllReduce of a communicator on cuda:0 is launched on stream 0 of "
                    "cuda:1"));
  });
}

}  // namespace
}  // namespace dtrain::test
