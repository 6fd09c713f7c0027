// A graph's replay does what the captured operations do, with the memory that they had, and its capture does nothing.
#include <exception>
#include <thread>

#include "gpus.h"

namespace dtrain::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class Graphs : public OnGpus {
 protected:
  Graphs() : stream_(pool_stream()), on_(stream_) {}

  template <typename F>
  static int capture(F f) {
    gpus.begin_capture();
    try {
      f();
    } catch (...) {
      EXPECT_THROW(gpus.end_capture(), c10::AcceleratorError);  // which it has made invalid
      throw;
    }
    return gpus.end_capture();
  }

  const c10::Stream stream_;
  const c10::StreamGuard on_;
};

TEST_F(Graphs, ReplayComputesAndCaptureDoesNot) {
  auto x = at::ones({4}, kGpu);
  at::Tensor y;
  const int graph = capture([&] {
    x.mul_(2);
    y = (x + 1).sum();
  });
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({4})));
  EXPECT_TRUE(y.isnan().item<bool>());
  gpus.take_counts();
  gpus.replay(graph);
  gpus.replay(graph);
  EXPECT_EQ(gpus.take_counts().graph_launches, 2);
  EXPECT_TRUE(at::equal(x.cpu(), at::full({4}, 4.0)));
  EXPECT_EQ(y.item<float>(), 20);
  x.fill_(1);
  gpus.replay(graph);
  EXPECT_EQ(y.item<float>(), 12);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, ItsMemoryIsNotUsedForAnythingElse) {
  const auto x = at::ones({4}, kGpu);
  at::Tensor y;
  const int graph = capture([&] { y = (x + 1) * 2; });
  const void* const place = y.data_ptr();
  y.reset();
  EXPECT_NE(at::empty({4}, kGpu).data_ptr(), place);
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, MemoryWithARecordedStreamIsNotUsedAgainInTheCapture) {
  const auto side = pool_stream();
  const void *first = nullptr, *second = nullptr;
  const int graph = capture([&] {
    auto x = at::ones({4}, kGpu);
    first = x.data_ptr();
    order(stream_, side);
    {
      const c10::StreamGuard on(side);
      x.mul_(2);
    }
    x.record_stream(side);
    x.reset();
    second = at::ones({4}, kGpu).data_ptr();
    order(side, stream_);
  });
  EXPECT_NE(first, second);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, RandomNumbersAreDrawnAnew) {
  at::Tensor x;
  at::manual_seed(3);
  const int graph = capture([&] { x = at::rand({4}, kGpu); });
  gpus.replay(graph);
  const auto first = x.cpu();
  gpus.replay(graph);
  EXPECT_FALSE(at::equal(first, x.cpu()));
  at::manual_seed(3);
  EXPECT_TRUE(at::equal(first, at::rand({4}, kGpu).cpu()));  // the capture drew none
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, CopiesWithPinnedMemory) {
  auto in = at::ones({4}).pin_memory(), out = at::zeros({4}).pin_memory();
  auto x = at::zeros({4}, kGpu);
  const int graph = capture([&] {
    x.copy_(in, true);
    x.mul_(2);
    out.copy_(x, true);
  });
  EXPECT_TRUE(at::equal(out, at::zeros({4})));
  in.fill_(5);  // it is read at the replay
  gpus.replay(graph);
  EXPECT_TRUE(out.isnan().all().item<bool>());
  stream_.synchronize();
  EXPECT_TRUE(at::equal(out, at::full({4}, 10.0)));
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, WaitsOfTheHostAreRefused) {
  auto x = at::ones({4}, kGpu);
  c10::Event before(at::kCUDA);
  before.record(stream_);
  EXPECT_THROW(capture([&] { x.sum().item<float>(); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { stream_.synchronize(); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { guard().synchronizeDevice(0); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { before.query(); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { at::nonzero(x); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { x.copy_(at::ones({4})); }), c10::Error);
  EXPECT_THROW(capture([&] { x.copy_(at::ones({4}).pin_memory()); }), c10::AcceleratorError);
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({4})));  // no capture is under way any more
}

// As libtorch's thread for backward does.
TEST_F(Graphs, OtherThreadsRecordOnTheStreamAndMustNotWaitForIt) {
  auto x = at::ones({4}, kGpu), elsewhere = at::ones({4}, kGpu);
  c10::Event before(at::kCUDA);
  before.record(stream_);
  const auto on_another_thread = [&](auto f) {
    std::exception_ptr error;
    std::thread([&] {
      const c10::StreamGuard on(stream_);
      try {
        f();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
  };
  const int graph = capture([&] {
    x.mul_(2);
    on_another_thread([&] { x.add_(1); });
    on_another_thread([&] {
      EXPECT_TRUE(before.query());  // which the capturing thread must not
      const c10::StreamGuard on(pool_stream());
      EXPECT_EQ(at::ones({4}, kGpu).sum().item<float>(), 4);
    });
    x.mul_(2);
  });
  gpus.replay(graph);
  EXPECT_TRUE(at::equal(x.cpu(), at::full({4}, 6.0)));
  EXPECT_THROW(capture([&] { on_another_thread([&] { x.sum().item<float>(); }); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { on_another_thread([&] { stream_.synchronize(); }); }), c10::AcceleratorError);
  EXPECT_THROW(capture([&] { on_another_thread([&] { guard().synchronizeDevice(0); }); }), c10::AcceleratorError);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, OtherStreamsJoinAndHaveToBeJoined) {
  const auto side = pool_stream();
  auto x = at::ones({4}, kGpu);
  const auto on_side = [&] {
    order(stream_, side);
    const c10::StreamGuard on(side);
    x.mul_(2);
  };
  EXPECT_THROW(capture(on_side), c10::AcceleratorError);
  const int graph = capture([&] {
    on_side();
    order(side, stream_);
    x.add_(1);
  });
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  gpus.replay(graph);
  EXPECT_TRUE(at::equal(x.cpu(), at::full({4}, 3.0)));
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, MissingWaitsInsideAreReported) {
  const auto side = pool_stream();
  auto x = at::ones({4}, kGpu);
  const int graph = capture([&] {
    order(stream_, side);
    {
      const c10::StreamGuard on(side);
      x.mul_(2);
    }
    x.add_(1);
    order(side, stream_);
  });
  EXPECT_THAT(gpus.take_reports(), Contains(HasSubstr("missing wait: add_ on stream")));
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, MissingWaitsForAReplayAreReported) {
  const auto side = pool_stream();
  auto x = at::ones({4}, kGpu);
  const int graph = capture([&] { x.mul_(2); });
  x.add_(1);
  gpus.replay(graph);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  {
    const c10::StreamGuard on(side);
    x.add_(1);
  }
  EXPECT_THAT(gpus.take_reports(), Contains(HasSubstr("what mul on stream")));
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, WorkThatWasNotCapturedCannotBeWaitedFor) {
  const auto side = pool_stream();
  c10::Event outside(at::kCUDA), inside(at::kCUDA);
  outside.record(side);
  EXPECT_THROW(capture([&] { outside.block(stream_); }), c10::AcceleratorError);
  const int graph = capture([&] { inside.record(stream_); });
  EXPECT_THROW(inside.synchronize(), c10::AcceleratorError);
  EXPECT_THROW(inside.block(side), c10::AcceleratorError);
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, MemoryFreedAfterTheCaptureIsReported) {
  auto x = at::ones({4}, kGpu);
  const int graph = capture([&] { x.mul_(2); });
  x.reset();
  gpus.replay(graph);
  EXPECT_THAT(gpus.take_reports(), Contains("a graph's mul writes memory that was freed after the capture"));
  gpus.destroy_graph(graph);
}

TEST_F(Graphs, TheDefaultStreamCannotBeCaptured) {
  const c10::StreamGuard on(guard().getDefaultStream(kGpu));
  EXPECT_THROW(gpus.begin_capture(), c10::Error);
}

}  // namespace
}  // namespace dtrain::test
