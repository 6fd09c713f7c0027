// The nccl backend's operations as parts of CUDA graphs, over the fake NCCL, among processes.
#include <torch/torch.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>

#include <csignal>
#include <optional>
#include <string>

#include "dtrain/base/error.h"
#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using comm::DataType;
using comm::Work;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using namespace std::chrono_literals;

const at::Device kCaptured(at::kCUDA, 0);
constexpr std::int64_t kElements = 5'003;  // parts of different sizes on 2 and on 3 ranks

// A graph for as long as it lives. What it throws at its end is CUDA's.
class TestGraph {
 public:
  explicit TestGraph(FakeGpus& gpus) : gpus_(gpus) { gpus_.begin_capture(); }
  ~TestGraph() {
    if (number_) gpus_.destroy_graph(*number_);
  }
  TestGraph(const TestGraph&) = delete;
  TestGraph& operator=(const TestGraph&) = delete;
  void end() { number_ = gpus_.end_capture(); }
  void replay() { gpus_.replay(*number_); }

 private:
  FakeGpus& gpus_;
  std::optional<int> number_;
};

// A rank with a stream that can be captured, a communicator, and tensors that a step works on.
struct CapturedScene {
  explicit CapturedScene(const GpuRank& gpu_rank, const TestWorld& world, std::uint64_t compared = 0)
      : rank(gpu_rank),
        number(gpu_rank.control.world().rank),
        on(c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(kCaptured)),
        communicator(rank.connect(
            world, {.current_stream =
                        [] { return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(kCaptured).native_handle(); },
                    .compared_operations = compared})),
        x(at::arange(kElements, at::kFloat).mul(0.001).add(number).to(kCaptured)),
        gradient(at::empty({kElements}, kCaptured)),
        parts(at::empty({kElements}, kCaptured)) {
    at::set_num_threads(1);
  }
  ~CapturedScene() { graph.reset(); }  // before the communicator
  CapturedScene(const CapturedScene&) = delete;
  CapturedScene& operator=(const CapturedScene&) = delete;

  // Whatever happens, no capture is under way afterwards.
  template <class F>
  void capture(const F& f, bool rehearsal = false) {
    rehearsal ? communicator->begin_rehearsal() : communicator->begin_capture();
    graph.emplace(rank.gpus);
    try {
      f();
    } catch (...) {
      EXPECT_THROW(graph->end(), c10::Error);
      graph.reset();
      static_cast<void>(end_of_communicator());
      throw;
    }
    graph->end();
    communicator->end_capture();
  }
  std::string end_of_communicator() const {
    try {
      communicator->end_capture();
      return "";
    } catch (const CommError& error) {
      return error.what();
    }
  }
  void replay() {
    graph->replay();
    communicator->replayed();
  }
  Work sum(const at::Tensor& data) const {
    return communicator->all_reduce(data.data_ptr(), static_cast<std::size_t>(data.numel()), DataType::kFloat32,
                                    {.bucket = 7});
  }
  // Gradients and an update as of training with replicas, and with parts.
  void step() {
    gradient.copy_(x.mul(1.5).add(number));
    sum(gradient).join();
    x.add_(gradient, 0.01);
    parts.copy_(x);
    const auto count = static_cast<std::size_t>(kElements);
    communicator->reduce_parts(parts.data_ptr(), count, DataType::kFloat32).join();
    parts.mul_(0.125);
    communicator->gather_parts(parts.data_ptr(), count, DataType::kFloat32).join();
    x.add_(parts);
  }
  // The device has done all, and the host knows.
  void settle() const {
    c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);
    communicator->progress();
  }
  // What f() or, later, progress() says in the end.
  std::string failure(const std::function<void()>& f = [] {}) const {
    try {
      f();
      for (;;) communicator->progress();
    } catch (const CommError& error) {
      return error.what();
    }
  }

  const GpuRank& rank;
  const int number;
  const c10::StreamGuard on;
  const std::unique_ptr<comm::NcclCommunicator> communicator;
  std::optional<TestGraph> graph;
  at::Tensor x, gradient, parts;
};

TEST(NcclGraphs, ReplaysGiveTheBitsOfEagerSteps) {
  for (const int ranks : {1, 2, 3}) {
    const TestWorld world(ranks);
    expect_gpu_ranks(ranks, [&](const GpuRank& rank) {
      CapturedScene scene(rank, world);
      const at::Tensor first = scene.x.clone();
      for (int i = 0; i < 5; ++i) scene.step();
      const at::Tensor eager = scene.x.cpu();
      scene.x.copy_(first);
      scene.settle();
      scene.capture([&] { scene.step(); });
      EXPECT_TRUE(at::equal(scene.x.cpu(), first.cpu()));  // the capture has done nothing
      rank.gpus.take_counts();
      for (int i = 0; i < 5; ++i) scene.replay();
      const FakeGpuCounts counts = rank.gpus.take_counts();
      EXPECT_EQ(counts.graph_launches, 5);
      EXPECT_EQ(counts.nccl_operations, 0);
      EXPECT_EQ(counts.kernels, 0);
      EXPECT_EQ(counts.host_syncs, 0);
      scene.settle();
      EXPECT_TRUE(at::equal(scene.x.cpu(), eager)) << ranks << " ranks";
      scene.step();  // and eager ones go on behind them
      scene.settle();
      EXPECT_FALSE(at::equal(scene.x.cpu(), eager));
    });
  }
}

TEST(NcclGraphs, AWorkIsCompleteWithoutTimesWhenTheCaptureEnds) {
  const TestWorld world(2);
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    Work work;
    scene.capture([&] {
      work = scene.sum(scene.x);
      EXPECT_FALSE(work.test());
      EXPECT_THROW(work.wait(), CommError);
      scene.communicator->progress();
      work.join();
    });
    EXPECT_TRUE(work.test());
    work.wait();
    EXPECT_EQ(work.timing().ended.count(), 0);
    const std::uint64_t before = work.sequence();
    scene.replay();
    const Work after = scene.sum(scene.gradient);
    EXPECT_EQ(after.sequence(), before + 1);  // the capture counts nothing, a replay as one operation
    scene.settle();
  });
}

TEST(NcclGraphs, AReplayBlocksNoThread) {
  const TestWorld world(2);
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    scene.capture([&] { scene.step(); });
    if (scene.number == 1) rank.control.barrier("rank 0 has replayed");
    for (int i = 0; i < 3; ++i) scene.replay();
    if (scene.number == 0) rank.control.barrier("rank 0 has replayed");
    scene.settle();
  });
}

TEST(NcclGraphs, AnOperationThatIsNotJoinedIsNamed) {
  const TestWorld world(2);
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    scene.communicator->begin_capture();
    scene.graph.emplace(rank.gpus);
    Work first = scene.sum(scene.x);
    (void)scene.communicator->gather_parts(scene.parts.data_ptr(), 100, DataType::kFloat32);
    first.join();
    EXPECT_THROW(scene.graph->end(), c10::AcceleratorError);  // CUDA: unjoined work
    EXPECT_THAT(scene.end_of_communicator(),
                AllOf(HasSubstr("gather_parts(float32, 100 elements), operation 1, was captured in a CUDA graph and "
                                "never joined")));
    scene.graph.reset();
    scene.step();  // the communicator is as before
    scene.settle();
    scene.capture([&] { scene.step(); });
    scene.replay();
    scene.settle();
  });
}

TEST(NcclGraphs, WhatCannotBePartOfAGraphIsRefused) {
  const TestWorld world(2);
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    std::vector<float> host(100);
    Work before = scene.sum(scene.gradient);
    const auto error_of = [&](auto f) -> std::string {
      try {
        f();
        return "no error";
      } catch (const CommError& error) {
        return error.what();
      }
    };
    scene.capture([&] {
      scene.sum(scene.x).join();
      EXPECT_THAT(error_of([&] { scene.communicator->all_reduce(host.data(), 100, DataType::kFloat32); }),
                  HasSubstr("all_reduce(sum, float32, 100 elements), operation 2, cannot be part of a CUDA graph: its "
                            "data is in host memory"));
      EXPECT_THAT(error_of([&] {
                    scene.communicator->all_reduce(scene.x.data_ptr(), 100, DataType::kFloat32, {.post_scale = 0.5});
                  }),
                  HasSubstr("its scale is an object of NCCL's"));
      EXPECT_THAT(error_of([&] { scene.communicator->allocate(100); }), HasSubstr("cannot be part of a CUDA graph"));
      EXPECT_THAT(error_of([&] { scene.communicator->begin_capture(); }), HasSubstr("under way already"));
      EXPECT_THAT(error_of([&] { scene.communicator->replayed(); }), HasSubstr("a capture is under way"));
      // It may be complete by then: its join() has nothing to do.
      EXPECT_THAT(error_of([&] { before.join(); }), AnyOf(HasSubstr("was issued before the capture"), "no error"));
    });
    scene.replay();
    scene.settle();
    EXPECT_THAT(error_of([&] { scene.communicator->end_capture(); }), HasSubstr("no capture has begun"));
  });
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    const CapturedScene scene(rank, world, 100);
    scene.communicator->begin_capture();
    EXPECT_THROW(scene.sum(scene.x), CommError);
    scene.communicator->end_capture();
    scene.sum(scene.x).wait();  // all ranks count alike
  });
}

TEST(NcclGraphs, AHostThatWaitsInACaptureEndsTheCaptureAlone) {
  const TestWorld world(2);
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    EXPECT_THROW(scene.capture([&] {
      scene.sum(scene.x).join();
      scene.x.sum().item<float>();
    }),
                 c10::Error);
    EXPECT_THROW(scene.capture([&] {
      try {
        scene.x.sum().item<float>();
      } catch (const c10::Error&) {
      }
      scene.sum(scene.x).join();  // of an invalid capture
    }),
                 CommError);
    scene.step();
    scene.settle();
  });
}

// NCCL hands over a captured operation on all ranks together.
TEST(NcclGraphs, APeerThatNeverCapturesIsNamed) {
  TestWorld world(2);
  world.timeout = 500ms;
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    if (scene.number == 0) {
      scene.communicator->begin_capture();
      scene.graph.emplace(rank.gpus);
      EXPECT_THAT(scene.failure([&] { scene.sum(scene.x).join(); }),
                  AllOf(HasSubstr("rank 0: all_reduce(sum, float32, 5003 elements, bucket 7), operation 0, timed out "
                                  "after"),
                        HasSubstr("rank 1")));
      scene.graph->end();
      EXPECT_THAT(scene.end_of_communicator(), HasSubstr("timed out"));
    }
    rank.control.barrier("rank 0 has failed");
  });
}

TEST(NcclGraphs, ARehearsalThatFailsOnOneRankHoldsUpNobody) {
  for (const int ranks : {1, 2, 3}) {
    const TestWorld world(ranks);
    expect_gpu_ranks(ranks, [&](const GpuRank& rank) {
      CapturedScene scene(rank, world);
      const auto rehearse = [&](bool fails) {
        scene.capture(
            [&] {
              scene.sum(scene.x).join();
              if (fails) scene.x.sum().item<float>();
              scene.step();
            },
            /*rehearsal=*/true);
      };
      const at::Tensor first = scene.x.cpu();
      rank.gpus.take_counts();
      if (scene.number == 0) {
        EXPECT_THROW(rehearse(true), c10::Error);
      } else {
        rehearse(false);
      }
      EXPECT_EQ(rank.gpus.take_counts().nccl_operations, 0);
      scene.graph.reset();
      EXPECT_THROW(scene.communicator->replayed(), CommError);  // nothing was captured
      rehearse(false);
      scene.graph.reset();
      EXPECT_TRUE(at::equal(scene.x.cpu(), first));
      scene.capture([&] { scene.step(); });
      scene.replay();
      scene.settle();
      const at::Tensor replayed = scene.x.cpu();
      scene.x.copy_(first);
      scene.step();
      scene.settle();
      EXPECT_TRUE(at::equal(scene.x.cpu(), replayed)) << ranks << " ranks";
    });
  }
}

TEST(NcclGraphs, APeerThatNeverReplaysIsNamed) {
  TestWorld world(2);
  world.timeout = 500ms;
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    scene.capture([&] { scene.step(); });
    if (scene.number == 0) {
      scene.replay();
      EXPECT_THAT(scene.failure(),
                  AllOf(HasSubstr("rank 0: a replayed step, 3 operations from all_reduce(sum, float32, 5003 elements, "
                                  "bucket 7), operation 0, timed out after"),
                        HasSubstr("rank 1")));
    }
    rank.control.barrier("rank 0 has failed");
  });
}

TEST(NcclGraphs, GraphsThatDifferAreAnError) {
  TestWorld world(2);
  world.timeout = 2'000ms;
  expect_gpu_ranks(2, [&](const GpuRank& rank) {
    CapturedScene scene(rank, world);
    const at::Tensor data = scene.x.slice(0, 0, scene.number == 0 ? 100 : 99);
    scene.capture([&] { scene.sum(data).join(); });
    scene.graph->replay();
    EXPECT_THAT(scene.failure([&] { scene.communicator->replayed(); }),
                HasSubstr("a replayed step, 1 operation: all_reduce(sum, float32, "));
    rank.control.barrier("both have failed");
  });
}

TEST(NcclGraphs, ARankThatIsKilledDuringReplaysIsNamed) {
  TestWorld world(3);
  world.timeout = 2'000ms;
  const auto outcomes = run_gpu_ranks(world,
                                      [&](const GpuRank& rank) {
                                        CapturedScene scene(rank, world);
                                        scene.capture([&] { scene.step(); });
                                        for (int i = 0; i < 3; ++i) scene.replay();
                                        if (scene.number == 1) ::raise(SIGKILL);
                                        for (int i = 0; i < 3; ++i) scene.replay();
                                        const std::string failure = scene.failure();
                                        scene.graph.reset();
                                        throw CommError(failure);
                                      },
                                      {[](const std::vector<pid_t>& pids) {
                                        for (const int other : {0, 2}) {
                                          siginfo_t info{};
                                          ::waitid(P_PID, static_cast<id_t>(pids[static_cast<std::size_t>(other)]),
                                                   &info, WEXITED | WNOWAIT);
                                        }
                                      }});
  EXPECT_EQ(outcomes[1].status.signal, SIGKILL);
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[2].error, HasSubstr("rank 1"));
}

TEST(NcclGraphs, ACommunicatorThatEndsBeforeItsGraphIsReported) {
  const TestWorld world(1);
  expect_gpu_ranks(1, [&](const GpuRank& rank) {
    std::optional<TestGraph> outlives;
    {
      CapturedScene scene(rank, world);
      scene.communicator->begin_capture();
      outlives.emplace(rank.gpus);
      scene.step();
      outlives->end();
      scene.communicator->end_capture();
    }
    EXPECT_THAT(rank.gpus.take_reports(), Contains(HasSubstr("a communicator ends while a graph exists that has")));
  });
}

}  // namespace
}  // namespace dtrain::test
