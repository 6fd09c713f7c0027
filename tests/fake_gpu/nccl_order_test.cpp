// NCCL's operations among libtorch's: what is not ordered is reported, and what comes after an operation waits for it.
#include <torch/torch.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const at::Device kRanksGpu(at::kCUDA, 0);

const c10::impl::VirtualGuardImpl& cuda() {
  static const c10::impl::VirtualGuardImpl the(at::kCUDA);
  return the;
}

c10::Stream own_stream() {
  return cuda().getStream(kRanksGpu);
}

void make_wait(c10::Stream later, c10::Stream first) {
  c10::Event event(at::kCUDA);
  event.record(first);
  event.block(later);
}

// Whether a thread of this process waits for something.
bool is_asleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(stat, text);
  return text.substr(text.rfind(')') + 2, 1) == "S";
}

// What each test needs: a tensor that this rank has filled, and a stream for NCCL.
struct Scene {
  explicit Scene(const GpuRank& gpu_rank)
      : rank(gpu_rank),
        nccl(gpu_rank),
        number(gpu_rank.control.world().rank),
        stream(cuda().getStreamFromGlobalPool(kRanksGpu)),
        x(at::full({1000}, number + 1.0, kRanksGpu)) {
    own_stream().synchronize();
    at::set_num_threads(1);
  }
  ncclResult_t sum() { return nccl.all_reduce(x.data_ptr(), 1000, stream.native_handle()); }
  // All ranks have come here.
  void meet(const std::string& where) { rank.control.barrier(where); }
  void expect_all(double value) {
    EXPECT_TRUE(at::equal(x.cpu(), at::full({1000}, value))) << x[0].item<float>() << " instead of " << value;
  }

  const GpuRank& rank;
  RawNccl nccl;
  const int number;
  const c10::Stream stream;
  at::Tensor x;
};

TEST(FakeNcclOrder, WithTheRightWaitsNothingIsReported) {
  for (const int ranks : {1, 2, 3}) {
    expect_gpu_ranks(ranks, [&](const GpuRank& rank) {
      Scene scene(rank);
      for (int i = 0; i < 20; ++i) {
        scene.x.fill_(scene.number + i);
        make_wait(scene.stream, own_stream());
        EXPECT_EQ(scene.sum(), ncclSuccess);
        make_wait(own_stream(), scene.stream);
        scene.x.add_(1);
      }
      scene.expect_all(ranks * (ranks - 1) / 2 + ranks * 19 + 1);
      const FakeGpuCounts counts = rank.gpus.take_counts();
      EXPECT_EQ(counts.nccl_operations, 20);
      EXPECT_EQ(counts.host_syncs, 1 + 1);  // of the scene, and of the check
      scene.nccl.close();
    });
  }
}

TEST(FakeNcclOrder, AMissingWaitBeforeIsReported) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    scene.x.mul_(2);
    EXPECT_EQ(scene.sum(), ncclSuccess);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(AllOf(HasSubstr("missing wait: ncclAllReduce on stream"),
                                                            HasSubstr("reads what mul on stream 0 of cuda:0 writes")),
                                                      HasSubstr("missing wait: ncclAllReduce on stream")));
    scene.nccl.close();
  });
}

TEST(FakeNcclOrder, AMissingWaitAfterIsReported) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    EXPECT_EQ(scene.sum(), ncclSuccess);
    scene.x.sum();
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(AllOf(HasSubstr("missing wait: sum on stream 0 of cuda:0 reads "),
                                                            HasSubstr("what ncclAllReduce on stream"))));
    scene.stream.synchronize();
    scene.nccl.close();
  });
}

TEST(FakeNcclOrder, AnEventBeforeTheLaunchHasEndedIsReported) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    const auto stream = static_cast<cudaStream_t>(scene.stream.native_handle());
    EXPECT_EQ(scene.nccl.api().ncclAllReduce(scene.x.data_ptr(), scene.x.data_ptr(), 1000, ncclFloat32, ncclSum,
                                             scene.nccl.handle(), stream),
              ncclInProgress);
    make_wait(own_stream(), scene.stream);
    EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("while NCCL still launches operations there")));
    EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
    scene.stream.synchronize();
    scene.expect_all(3);
    scene.nccl.close();
  });
}

TEST(FakeNcclOrder, NothingBehindAnUnfinishedOperationIsReady) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    if (scene.number == 1) {
      scene.meet("rank 0 has asked");
      EXPECT_EQ(scene.sum(), ncclSuccess);
    } else {
      EXPECT_EQ(scene.sum(), ncclSuccess);
      c10::Event done(at::kCUDA), behind(at::kCUDA);
      done.record(scene.stream);
      done.block(own_stream());
      behind.record(own_stream());
      EXPECT_FALSE(done.query());
      EXPECT_FALSE(behind.query());
      EXPECT_FALSE(scene.stream.query());
      EXPECT_FALSE(own_stream().query());
      scene.meet("rank 0 has asked");
      behind.synchronize();
      EXPECT_TRUE(done.query());
      EXPECT_TRUE(scene.stream.query());
    }
    scene.stream.synchronize();
    scene.expect_all(3);
    scene.nccl.close();
  });
}

TEST(FakeNcclOrder, AKernelBehindAnUnfinishedOperationBlocksItsThreadAlone) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    if (scene.number == 1) {
      scene.meet("rank 0 is blocked");
      EXPECT_EQ(scene.sum(), ncclSuccess);
      scene.stream.synchronize();
    } else {
      EXPECT_EQ(scene.sum(), ncclSuccess);
      std::atomic<bool> launched{false};
      std::atomic<pid_t> thread{0};
      std::thread blocked([&] {
        const c10::StreamGuard on(scene.stream);
        thread = ::gettid();
        scene.x.add_(1);
        launched = true;
      });
      int sleeps = 0;
      while (sleeps < 5) {  // the other streams go on
        auto y = at::ones({10}, kRanksGpu);
        EXPECT_EQ(y.add_(1).sum().item<float>(), 20);
        sleeps += thread != 0 && is_asleep(thread) ? 1 : 0;
      }
      EXPECT_FALSE(launched);
      scene.meet("rank 0 is blocked");
      blocked.join();
      scene.stream.synchronize();
      scene.expect_all(4);
    }
    scene.nccl.close();
  });
}

void stop_wakes(bool revoke) {
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    Scene scene(rank);
    if (scene.number == 0) {
      EXPECT_EQ(scene.sum(), ncclSuccess);
      auto y = at::empty_like(scene.x);
      own_stream().synchronize();
      std::thread blocked([&] {
        const c10::StreamGuard on(scene.stream);
        at::add_out(y, scene.x, 1);
      });
      if (revoke) {
        EXPECT_EQ(scene.nccl.api().ncclCommRevoke(scene.nccl.handle(), NCCL_REVOKE_DEFAULT), ncclInProgress);
        EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
      } else {
        EXPECT_EQ(scene.nccl.api().ncclCommAbort(scene.nccl.handle()), ncclSuccess);
      }
      blocked.join();
      scene.stream.synchronize();
      EXPECT_TRUE(scene.x.isnan().all().item<bool>());
      EXPECT_TRUE(y.isnan().all().item<bool>());
    }
    scene.meet("rank 0 has stopped");
    if (!revoke && scene.number == 0) {
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(scene.nccl.api().ncclCommGetAsyncError(scene.nccl.handle(), &state), ncclInvalidArgument);
      EXPECT_THAT(rank.gpus.take_reports(), ElementsAre(HasSubstr("of a communicator that was destroyed or aborted")));
      scene.nccl.forget();
    }
  });
}

TEST(FakeNcclOrder, AnAbortWakesABlockedThread) {
  stop_wakes(false);
}

TEST(FakeNcclOrder, ARevocationWakesABlockedThread) {
  stop_wakes(true);
}

// Bit for bit, rounded at each step.
TEST(FakeNcclOrder, SumsAreInTheOrderOfTheRanks) {
  expect_gpu_ranks(3, [](const GpuRank& rank) {
    const Scene scene(rank);
    for (const auto& [type, nccl_type] : {std::pair(at::kFloat, ncclFloat32), std::pair(at::kBFloat16, ncclBfloat16),
                                          std::pair(at::kHalf, ncclFloat16), std::pair(at::kDouble, ncclFloat64)}) {
      at::manual_seed(7);
      std::vector<at::Tensor> all;
      for (int r = 0; r < 3; ++r) all.push_back((at::randn({1000}, at::kDouble) * std::pow(10, r)).to(type));
      const at::Tensor sum = (all[0] + all[1]) + all[2];
      EXPECT_FALSE(at::equal(sum, all[0] + (all[1] + all[2])));
      auto x = all[static_cast<std::size_t>(scene.number)].to(kRanksGpu);
      EXPECT_EQ(scene.nccl.api().ncclAllReduce(x.data_ptr(), x.data_ptr(), 1000, nccl_type, ncclSum,
                                               scene.nccl.handle(), nullptr),
                ncclInProgress);
      EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
      EXPECT_TRUE(at::equal(x.cpu(), sum)) << type;
    }
  });
}

// The second operation could begin before the first on rank 0, and does not.
TEST(FakeNcclOrder, OperationsOfACommunicatorStayInOrderOnTwoStreams) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    const RawNccl other(rank);
    const c10::Stream first = cuda().getStreamFromGlobalPool(kRanksGpu),
                      second = cuda().getStreamFromGlobalPool(kRanksGpu);
    auto y = at::full({1000}, 10.0, kRanksGpu), z = at::full({1000}, 100.0, kRanksGpu);
    own_stream().synchronize();
    const auto sum_z = [&](c10::Stream stream) {
      EXPECT_EQ(other.all_reduce(z.data_ptr(), 1000, stream.native_handle()), ncclSuccess);
    };
    if (scene.number == 0) sum_z(first);
    EXPECT_EQ(scene.nccl.all_reduce(scene.x.data_ptr(), 1000, first.native_handle()), ncclSuccess);
    EXPECT_EQ(scene.nccl.all_reduce(y.data_ptr(), 1000, second.native_handle()), ncclSuccess);
    scene.meet("rank 0 has launched all");
    if (scene.number == 1) sum_z(scene.stream);
    for (const c10::Stream& stream : {first, second, scene.stream}) stream.synchronize();
    scene.expect_all(3);
    EXPECT_TRUE(at::equal(y.cpu(), at::full({1000}, 20.0)));
    EXPECT_TRUE(at::equal(z.cpu(), at::full({1000}, 200.0)));
  });
}

// As NCCL does: a group waits for all of its streams, and they for it.
TEST(FakeNcclOrder, AGroupOrdersItsStreams) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    const Scene scene(rank);
    const comm::NcclApi& api = scene.nccl.api();
    auto y = at::ones({1000}, kRanksGpu);
    own_stream().synchronize();
    scene.x.mul_(2);
    y.mul_(2);
    EXPECT_EQ(api.ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(scene.nccl.all_reduce(scene.x.data_ptr(), 1000, scene.stream.native_handle()), ncclSuccess);
    EXPECT_EQ(scene.nccl.all_reduce(y.data_ptr(), 1000, own_stream().native_handle()), ncclSuccess);
    EXPECT_EQ(api.ncclGroupEnd(), ncclInProgress);
    EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
    EXPECT_TRUE(at::equal(scene.x.add(y).cpu(), at::full({1000}, 10.0)));
  });
}

// Not by the ranks' calls: rank 1 waits on the host for what its operations make possible.
TEST(FakeNcclOrder, OperationsGoOnWithoutTheHost) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    if (scene.number == 0) scene.meet("rank 1 has launched all");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(scene.sum(), ncclSuccess);  // the second begins when the first has ended
    if (scene.number == 1) scene.meet("rank 1 has launched all");
    if (scene.number == 0) scene.stream.synchronize();
    scene.meet("rank 0 is done");
    scene.stream.synchronize();
    scene.expect_all(12);
    scene.nccl.close();
  });
}

// Larger than the memory through which ranks give each other data.
TEST(FakeNcclOrder, LargeOperations) {
  expect_gpu_ranks(3, [](const GpuRank& rank) {
    const Scene scene(rank);
    const comm::NcclApi& api = scene.nccl.api();
    constexpr std::int64_t kPart = 1'000'003;
    const auto values = at::arange(3 * kPart, at::kFloat).remainder(1000);
    auto x = values.add(scene.number).to(kRanksGpu), part = at::empty({kPart}, kRanksGpu);
    EXPECT_EQ(
        api.ncclReduceScatter(x.data_ptr(), part.data_ptr(), kPart, ncclFloat32, ncclSum, scene.nccl.handle(), nullptr),
        ncclInProgress);
    EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
    EXPECT_EQ(api.ncclAllGather(part.data_ptr(), x.data_ptr(), kPart, ncclFloat32, scene.nccl.handle(), nullptr),
              ncclInProgress);
    EXPECT_EQ(scene.nccl.settle(), ncclSuccess);
    EXPECT_TRUE(at::equal(x.cpu(), values.mul(3).add(3)));
    EXPECT_EQ(scene.nccl.all_reduce(x.data_ptr(), 3 * kPart, nullptr), ncclSuccess);
    EXPECT_TRUE(at::equal(x.cpu(), values.mul(9).add(9)));
  });
}

TEST(FakeNcclOrder, MemoryMayBeFreedAfterAnAbort) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    const comm::NcclApi& api = scene.nccl.api();
    void* data = nullptr;
    ASSERT_EQ(api.ncclMemAlloc(&data, 400), ncclSuccess);
    if (scene.number == 0) {
      EXPECT_EQ(scene.nccl.all_reduce(data, 100, nullptr), ncclSuccess);
    }
    EXPECT_EQ(api.ncclCommAbort(scene.nccl.handle()), ncclSuccess);
    scene.nccl.forget();
    EXPECT_EQ(api.ncclMemFree(data), ncclSuccess);
    scene.meet("all have aborted");
  });
}

TEST(FakeNcclOrder, FreedMemoryIsNotGivenOutWhileAnOperationHasIt) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    Scene scene(rank);
    const void* const place = scene.x.data_ptr();
    if (scene.number == 0) {
      EXPECT_EQ(scene.sum(), ncclSuccess);
      scene.x.record_stream(scene.stream);
      scene.x.reset();
      scene.x = at::full({1000}, 7.0, kRanksGpu);
      EXPECT_NE(scene.x.data_ptr(), place);
      scene.meet("rank 0 has freed it");
      scene.stream.synchronize();
      scene.expect_all(7);
      EXPECT_EQ(at::empty({1000}, kRanksGpu).data_ptr(), place);
    } else {
      scene.meet("rank 0 has freed it");
      EXPECT_EQ(scene.sum(), ncclSuccess);
      scene.stream.synchronize();
      scene.expect_all(3);
    }
    scene.nccl.close();
  });
}

}  // namespace
}  // namespace dtrain::test
