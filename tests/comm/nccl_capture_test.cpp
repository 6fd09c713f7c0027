// Operations of the nccl backend as parts of CUDA graphs, among threads, over the fake NCCL. What graphs compute beside
// kernels, and failures, is tested in tests/fake_gpu/nccl_graph_test.cpp.
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::NcclWorld;
using testing::HasSubstr;
using namespace std::chrono_literals;

// Ranks with a stream each, on which they capture.
struct CapturingWorld : NcclWorld {
  explicit CapturingWorld(int ranks) : NcclWorld(ranks) {
    options.compared_operations = 0;
    options.current_stream = [] { return static_cast<void*>(current()); };
    for (int r = 0; r < ranks; ++r) streams.push_back(fake.cuda(r).make_stream());
  }
  static cudaStream_t& current() {
    thread_local cudaStream_t the = nullptr;
    return the;
  }
  void run(const std::function<void(NcclCommunicator&, test::FakeCuda&)>& fn) {
    run_control_ranks(*this, [&](ControlPlane& control) {
      const int rank = control.world().rank;
      current() = streams[static_cast<std::size_t>(rank)];
      const auto communicator = connect(control);
      fn(*communicator, fake.cuda(rank));
    });
    for (int r = 0; r < size; ++r) fake.api(r)->cudaStreamDestroy(streams[static_cast<std::size_t>(r)]);
    expect_clean();
  }
  std::vector<cudaStream_t> streams;
};

void settle(test::FakeCuda& cuda) {
  std::promise<void> here;
  cuda.stream(CapturingWorld::current())->push([&] { here.set_value(); });
  here.get_future().wait();
}

TEST(NcclCapture, ReplaysComputeWhatEagerOperationsDo) {
  for (const int ranks : {1, 2, 3}) {
    CapturingWorld world(ranks);
    world.run([&](NcclCommunicator& comm, test::FakeCuda& cuda) {
      const std::size_t count = 1'001;
      const auto buffer = comm.allocate(count * sizeof(float));
      auto* const data = reinterpret_cast<float*>(buffer->bytes().data());
      const auto step = [&] {
        comm.all_reduce(data, count, DataType::kFloat32).join();
        const Group group(comm);
        (void)comm.reduce_parts(data, count / 2, DataType::kFloat32);
        (void)comm.gather_parts(data, count / 2, DataType::kFloat32);
      };
      const auto fill = [&] { std::fill_n(data, count, static_cast<float>(comm.rank() + 1) / 3); };
      const auto run_steps = [&](auto one) {
        for (int i = 0; i < 5; ++i) one();
        comm.barrier().wait();
        return std::vector<float>(data, data + count);
      };
      fill();
      const std::vector<float> eager = run_steps(step);
      comm.barrier().wait();
      fill();
      comm.begin_capture();
      cuda.begin_capture(CapturingWorld::current());
      step();
      Work last = comm.barrier();
      last.join();
      const int graph = cuda.end_capture();
      comm.end_capture();
      ASSERT_GE(graph, 0);
      EXPECT_TRUE(last.test());
      EXPECT_EQ(data[0], static_cast<float>(comm.rank() + 1) / 3);  // the capture has done nothing
      const std::vector<float> replayed = run_steps([&] {
        cuda.replay(graph, CapturingWorld::current());
        comm.replayed();
      });
      EXPECT_EQ(replayed, eager) << ranks << " ranks";
    });
  }
}

// The watchdog looks at an operation that is under way, from its own thread.
TEST(NcclCapture, WhatIsUnderWayGoesOnDuringACapture) {
  CapturingWorld world(2);
  world.timeout = 10'000ms;
  std::atomic<bool> captured{false};
  world.run([&](NcclCommunicator& comm, test::FakeCuda& cuda) {
    const auto buffer = comm.allocate(400);
    while (comm.rank() == 1 && !captured) std::this_thread::sleep_for(1ms);
    Work before = comm.all_reduce(buffer->bytes().data(), 100, DataType::kFloat32);
    if (comm.rank() == 0) {
      comm.begin_capture();
      cuda.begin_capture(CapturingWorld::current());
      comm.all_reduce(buffer->bytes().data(), 100, DataType::kFloat32).join();
      comm.progress();
      EXPECT_FALSE(before.test());
      EXPECT_THROW(before.join(), CommError);
      std::this_thread::sleep_for(600ms);  // more than the watchdog's period
      EXPECT_GE(cuda.end_capture(), 0);
      comm.end_capture();
      captured = true;
    }
    before.wait();
    settle(cuda);
  });
}

TEST(NcclCapture, AnOperationThatIsNotJoinedIsNamed) {
  CapturingWorld world(1);
  world.run([&](NcclCommunicator& comm, test::FakeCuda& cuda) {
    const auto buffer = comm.allocate(400);
    comm.begin_capture();
    cuda.begin_capture(CapturingWorld::current());
    (void)comm.all_reduce(buffer->bytes().data(), 100, DataType::kFloat32);
    EXPECT_EQ(cuda.end_capture(), -1);
    try {
      comm.end_capture();
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("all_reduce(sum, float32, 100 elements), operation 1, was captured in a CUDA "
                                          "graph and never joined"));
    }
    comm.all_reduce(buffer->bytes().data(), 100, DataType::kFloat32).wait();
  });
}

}  // namespace
}  // namespace dtrain::comm
