// The fake NCCL itself.
#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::FakeNccl;
using testing::HasSubstr;

// The fake would be worth little if it overlooked wrong use.
TEST(FakeNccl, ComplainsAboutWrongUse) {
  FakeNccl fake(1);
  const auto api = fake.api(0);
  const auto complains = [&](const char* about) {
    EXPECT_THAT(fake.complaints(), testing::Contains(HasSubstr(about)));
  };
  void* data = nullptr;
  api->ncclMemAlloc(&data, 64);
  complains("never freed");
  api->ncclMemFree(data);
  api->ncclMemFree(data);
  complains("freed before");
  cudaStream_t stream = nullptr;
  api->cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5);
  ncclUniqueId id;
  api->ncclGetUniqueId(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  api->ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  api->ncclMemAlloc(&data, 64);
  const auto reduce = [&](std::size_t count) {
    api->ncclGroupStart();
    api->ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream);
    return api->ncclGroupEnd();
  };
  reduce(1);
  complains("while the one before is in progress");
  const auto settle = [&] {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) api->ncclCommGetAsyncError(comm, &state);
  };
  settle();
  reduce(17);
  complains("more than was allocated");
  EXPECT_EQ(reduce(16), ncclInProgress);
  cudaEvent_t event = nullptr;
  api->cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  api->cudaEventRecord(event, stream);
  complains("before the launch");
  settle();
  void* registration = nullptr;
  api->ncclCommRegister(comm, data, 64, &registration);
  api->ncclMemFree(data);
  complains("while it is registered");
  api->ncclGroupStart();
  complains("never closed");
  api->ncclCommDestroy(comm);
  complains("before ncclCommFinalize");
  api->ncclCommAbort(comm);
  complains("destroyed or aborted");
}

}  // namespace
}  // namespace dtrain::comm
