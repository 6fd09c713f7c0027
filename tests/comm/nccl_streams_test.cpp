// Operations of the nccl backend among other work of the GPU, and the scales it takes; over the fake NCCL.
#include <array>
#include <atomic>
#include <chrono>
#include <future>

#include "../harness/eventually.h"
#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::NcclWorld;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(NcclStreams, OperationsBeginBehindTheCallersStreamAndTheStreamGoesOnBehindThem) {
  NcclWorld world(1);
  test::FakeCuda& cuda = world.fake.cuda(0);
  const cudaStream_t stream = cuda.make_stream();
  world.options.current_stream = [stream] { return static_cast<void*>(stream); };
  std::atomic<float> seen{0};
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) {
    const auto in = comm.allocate(4);
    const auto out = comm.allocate(4);
    auto* const value = reinterpret_cast<float*>(in->bytes().data());
    auto* const result = reinterpret_cast<float*>(out->bytes().data());
    cuda.stream(stream)->push([=] {
      std::this_thread::sleep_for(50ms);
      *value = 42;
    });
    Work work = comm.all_reduce(value, result, 1, DataType::kFloat32);
    comm.order_after(stream, work);
    std::promise<void> behind;
    cuda.stream(stream)->push([&] {
      seen = *result;
      behind.set_value();
    });
    behind.get_future().wait();
    work.wait();
    EXPECT_EQ(*result, 42);
    comm.order_after(stream, work);  // complete: nothing to wait for
    comm.begin_group();
    const Work grouped = comm.barrier();
    EXPECT_THROW(comm.order_after(stream, grouped), CommError);
    comm.end_group();
  });
  EXPECT_EQ(seen, 42);
  world.fake.api(0)->cudaStreamDestroy(stream);
  world.expect_clean();
}

TEST(NcclStreams, AJoinedStreamGoesOnBehindTheOperationAndTheHostAtOnce) {
  NcclWorld world(2);
  std::array<cudaStream_t, 2> streams{world.fake.cuda(0).make_stream(), world.fake.cuda(1).make_stream()};
  thread_local cudaStream_t current = nullptr;
  world.options.current_stream = [] { return static_cast<void*>(current); };
  std::atomic<bool> joined{false};
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    current = streams[rank];
    const auto buffer = comm.allocate(4);
    auto* const value = reinterpret_cast<float*>(buffer->bytes().data());
    test::FakeCuda& cuda = world.fake.cuda(comm.rank());
    cuda.stream(current)->push([=] { *value = 21; });
    while (rank == 1 && !joined) std::this_thread::sleep_for(1ms);  // rank 0's host does not wait for rank 1
    Work work = comm.all_reduce(value, 1, DataType::kFloat32);
    work.join();
    if (rank == 0) joined = true;
    std::promise<float> behind;
    cuda.stream(current)->push([&] { behind.set_value(*value); });
    EXPECT_EQ(behind.get_future().get(), 42);
    work.wait();
    const WorkTiming timing = work.timing();
    EXPECT_LE(timing.enqueued, timing.ended);
    EXPECT_LE(timing.started, timing.ended);
  });
  for (int rank = 0; rank < 2; ++rank) world.fake.api(rank)->cudaStreamDestroy(streams[static_cast<std::size_t>(rank)]);
  world.expect_clean();
}

// The host looks long after the device has ended an operation: what is recorded is the device's time.
TEST(NcclStreams, AnEndIsTheDevicesHoweverLateTheHostLooks) {
  NcclWorld world(1);
  world.fake.faults(0).launches_by_itself = true;
  world.fake.faults(0).slow_ms = 5;
  test::FakeCuda& cuda = world.fake.cuda(0);
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) {
    const auto buffer = comm.allocate(20'000);
    comm.all_reduce(buffer->bytes().data(), 5000, DataType::kFloat32).wait();  // the clocks meet
    const std::size_t before = cuda.fired().size();
    Work work = comm.all_reduce(buffer->bytes().data(), 5000, DataType::kFloat32);
    // The events in front of the operation and behind it fire although the host does not look.
    ASSERT_TRUE(eventually([&] { return cuda.fired().size() == before + 2; }));
    const auto fired = cuda.fired();
    const Nanoseconds on_device = fired[before + 1] - fired[before];
    work.wait();
    const WorkTiming timing = work.timing();
    EXPECT_GE(on_device, 5ms);
    EXPECT_LT(timing.started, timing.ended);
    EXPECT_LE(timing.ended - timing.started, on_device + 1us);  // CUDA's distances are rounded
  });
  world.expect_clean();
}

TEST(NcclStreams, AJoinedResultInHostMemoryIsThere) {
  NcclWorld world(2);
  std::array<cudaStream_t, 2> streams{world.fake.cuda(0).make_stream(), world.fake.cuda(1).make_stream()};
  thread_local cudaStream_t current = nullptr;
  world.options.current_stream = [] { return static_cast<void*>(current); };
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) {
    current = streams[static_cast<std::size_t>(comm.rank())];
    std::int64_t value = comm.rank() + 1;
    comm.all_reduce(&value, 1, DataType::kInt64).join();
    EXPECT_EQ(value, 3);
  });
  for (int rank = 0; rank < 2; ++rank) world.fake.api(rank)->cudaStreamDestroy(streams[static_cast<std::size_t>(rank)]);
  world.expect_clean();
}

// Its host is elsewhere all the time, as one that is blocked in a launch.
TEST(NcclStreams, TheWatchdogEndsWhatAPeerNeverEnters) {
  NcclWorld world(2);
  world.timeout = 300ms;
  const cudaStream_t stream = world.fake.cuda(0).make_stream();
  world.options.current_stream = [stream] { return static_cast<void*>(stream); };
  std::atomic<bool> seen{false};
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane& control) {
    if (comm.rank() == 1) {
      const auto buffer = comm.allocate(20'000);
      while (!seen) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto buffer = comm.allocate(20'000);
    Work work = comm.all_reduce(buffer->bytes().data(), 5000, DataType::kFloat32, {.bucket = 7});
    work.join();
    const std::string key = "nccl/stopped/0";  // what the watchdog publishes when it gives up
    while (!control.get_within(key, 20ms)) {
    }
    seen = true;
    for (;;) comm.progress();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0: " + std::string(test::kNcclSum)), HasSubstr("timed out after"),
                               HasSubstr("rank 1")));
}

TEST(NcclStreams, SlowRanksAreWaitedFor) {
  NcclWorld world(3);
  world.fake.faults(1).slow_ms = 20;
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    for (int i = 0; i < 5; ++i) {
      std::int64_t value = comm.rank();
      comm.all_reduce(&value, 1, DataType::kInt64).wait();
      EXPECT_EQ(value, 3);
    }
  });
  world.expect_clean();
}

// What is staged is read when the operation before it has written it.
TEST(NcclStreams, OperationsOnTheSameHostMemoryFollowEachOther) {
  NcclWorld world(2);
  world.fake.faults(0).slow_ms = 2;
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    std::vector<std::int64_t> data(100, 1);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(comm.all_reduce(data.data(), data.size(), DataType::kInt64));
    works.back().wait();
    EXPECT_THAT(data, Each(1024));
    std::vector<std::int64_t> all(2);
    (void)comm.all_gather(data.data(), all.data(), 1, DataType::kInt64);
    comm.all_reduce(all.data(), 2, DataType::kInt64).wait();
    EXPECT_THAT(all, Each(2048));
  });
  world.expect_clean();
}

TEST(NcclScales, AFactorThatTheTypeDoesNotHoldIsRefused) {
  NcclWorld world(1);
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    std::uint16_t value = 0;
    EXPECT_THROW(comm.all_reduce(&value, 1, DataType::kFloat16, {.post_scale = 1e-9}), CommError);
    EXPECT_THROW(comm.all_reduce(&value, 1, DataType::kFloat16, {.pre_scale = 1e9}), CommError);
    comm.all_reduce(&value, 1, DataType::kBfloat16, {.post_scale = 1e-9}).wait();
  });
  world.expect_clean();
}

TEST(NcclScales, ExtremesAndProductsAreNotScaledEvenByScalesThatCancelOut) {
  NcclWorld world(1);
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    float x = 3;
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      EXPECT_THROW(comm.all_reduce(&x, 1, DataType::kFloat32, {.op = op, .pre_scale = -2, .post_scale = -0.5}),
                   CommError);
    }
    comm.all_reduce(&x, 1, DataType::kFloat32, {.pre_scale = -2, .post_scale = -0.5}).wait();
    EXPECT_EQ(x, 3.0f);
  });
  world.expect_clean();
}

}  // namespace
}  // namespace dtrain::comm
