// Streams, events and freed memory: what is not ordered is reported each time, and what is ordered never.
#include <algorithm>

#include "gpus.h"

namespace dtrain::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Order : public OnGpus {
 protected:
  Order() : side_(pool_stream()) {}

  template <typename F>
  void on_side(F f) const {
    const c10::StreamGuard on(side_);
    f();
  }

  const c10::Stream side_;
};

TEST_F(Order, AReadAfterAWriteNeedsAWait) {
  for (int i = 0; i < 3; ++i) {  // not by chance
    auto x = at::ones({16}, kGpu);
    on_side([&] { x.sum(); });
    EXPECT_THAT(gpus.take_reports(), ElementsAre(AllOf(HasSubstr("missing wait: sum on stream"),
                                                       HasSubstr("reads what fill_ on stream 0 of cuda:0 writes"),
                                                       HasSubstr("64 bytes that empty allocated"))));
    order(side_, current_stream());
  }
}

TEST_F(Order, AnEventOrdersWhatWasLaunchedBeforeItWasRecorded) {
  auto x = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] { x.mul_(2); });
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  order(side_, current_stream());
  x.add_(1);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  EXPECT_TRUE(at::equal(x.cpu(), at::full({16}, 3.0)));
}

TEST_F(Order, AnEventRecordedTooEarlyOrdersNothing) {
  auto x = at::ones({16}, kGpu);
  c10::Event early(at::kCUDA);
  early.record(current_stream());
  x.mul_(2);
  early.block(side_);
  on_side([&] { x.sum(); });
  EXPECT_THAT(gpus.take_reports(), ElementsAre(HasSubstr("reads what mul on stream 0")));
}

TEST_F(Order, AWriteNeedsAWaitForReads) {
  auto x = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] { x.sum(); });
  x.zero_();
  EXPECT_THAT(gpus.take_reports(), ElementsAre(HasSubstr("writes what sum on stream")));
  order(side_, current_stream());
}

TEST_F(Order, TwoReadsNeedNone) {
  auto x = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] { x.sum(); });
  x.sum();
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  order(side_, current_stream());
}

TEST_F(Order, PartsOfATensorAreApart) {
  auto x = at::ones({16}, kGpu);
  auto left = x.narrow(0, 0, 8), right = x.narrow(0, 8, 8);
  order(current_stream(), side_);
  on_side([&] { right.mul_(2); });
  left.mul_(3);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  x.narrow(0, 7, 2).mul_(1);
  EXPECT_THAT(gpus.take_reports(), testing::Contains(HasSubstr("writes what mul on stream")));
  order(side_, current_stream());
}

TEST_F(Order, AWaitOfTheHostOrdersAllStreams) {
  auto x = at::ones({16}, kGpu);
  current_stream().synchronize();
  on_side([&] { x.mul_(2); });
  c10::Event done(at::kCUDA);
  done.record(side_);
  EXPECT_TRUE(done.query());
  x.add_(1);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, OrderReachesThroughAThirdStream) {
  const auto third = pool_stream();
  auto x = at::ones({16}, kGpu);
  order(current_stream(), third);
  order(third, side_);
  on_side([&] { x.mul_(2); });
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  order(side_, current_stream());
}

TEST_F(Order, OperationsOfOtherLibrariesCount) {
  auto x = at::ones({16}, kGpu);
  const FakeGpuMemory memory{x.data_ptr(), x.nbytes()};
  const auto twice = [x] {
    auto* const data = static_cast<float*>(gpus.alias(x.data_ptr()));
    std::for_each(data, data + x.numel(), [](float& f) { f *= 2; });
  };
  gpus.launch(side_.native_handle(), "ncclAllReduce", {&memory, 1}, {&memory, 1}, twice);
  EXPECT_THAT(gpus.take_reports(), testing::Contains(HasSubstr("ncclAllReduce on stream")));
  order(side_, current_stream());
  EXPECT_EQ(x.sum().item<float>(), 32);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, FreshMemoryIsNaN) {
  EXPECT_TRUE(at::empty({8}, kGpu).isnan().all().item<bool>());
  EXPECT_TRUE(at::empty({8}, at::TensorOptions(kGpu).dtype(at::kBFloat16)).isnan().all().item<bool>());
}

TEST_F(Order, MemoryFreedInUseIsReportedAtTheNextAllocation) {
  auto x = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] { x.mul_(2); });
  x.reset();
  EXPECT_THAT(gpus.take_reports(), IsEmpty());  // nothing has got it yet
  at::empty({1000}, kGpu);                      // of another size: the real allocator may use it all the same
  EXPECT_THAT(gpus.take_reports(),
              ElementsAre(AllOf(HasSubstr("freed too early: mul on stream"), HasSubstr("record_stream"))));
  at::ones({16}, kGpu);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, MemoryFreedInUseIsSafeOnceItsStreamHasWaited) {
  auto x = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] { x.mul_(2); });
  x.reset();
  order(side_, current_stream());
  at::ones({16}, kGpu);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, RecordStreamKeepsMemoryButOrdersNothing) {
  auto x = at::ones({16}, kGpu), y = at::ones({16}, kGpu);
  order(current_stream(), side_);
  on_side([&] {
    x.mul_(2);
    y.mul_(2);
  });
  x.record_stream(side_);
  const void* const place = x.data_ptr();
  x.reset();
  auto again = at::ones({16}, kGpu);
  EXPECT_EQ(again.data_ptr(), place);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  y.add_(1);  // the side stream has not been waited for
  EXPECT_THAT(gpus.take_reports(), testing::Contains(HasSubstr("missing wait: add_ on")));
  order(side_, current_stream());
}

TEST_F(Order, MemoryIsCachedForItsStream) {
  auto x = at::ones({16}, kGpu);
  const void* const place = x.data_ptr();
  x.reset();
  on_side([&] { EXPECT_NE(at::ones({16}, kGpu).data_ptr(), place); });
  EXPECT_EQ(at::ones({16}, kGpu).data_ptr(), place);
}

TEST_F(Order, ACopyToTheHostLandsWhenTheHostWaits) {
  const auto x = at::full({4}, 7.0, kGpu);
  auto host = at::zeros({4}, at::TensorOptions().pinned_memory(true));
  host.copy_(x, true);
  c10::Event done(at::kCUDA);
  done.record(current_stream());
  EXPECT_TRUE(host.isnan().all().item<bool>());  // read too early
  done.synchronize();
  EXPECT_TRUE(at::equal(host, at::full({4}, 7.0)));
}

TEST_F(Order, ACopyToTheHostTakesWhatIsThereInItsTurn) {
  auto x = at::full({4}, 7.0, kGpu);
  auto host = at::empty({4}, at::TensorOptions().pinned_memory(true));
  host.copy_(x, true);
  x.fill_(8);
  current_stream().synchronize();
  EXPECT_TRUE(at::equal(host, at::full({4}, 7.0)));
}

TEST_F(Order, PinnedMemoryIsReadLater) {
  auto host = at::ones({4}).pin_memory();
  auto x = host.to(kGpu, true);
  host.fill_(2);  // the copy may not have been made yet
  current_stream().synchronize();
  EXPECT_THAT(gpus.take_reports(), ElementsAre(HasSubstr("the host writes pinned memory before copy_ from the host")));
  x = host.to(kGpu, true);
  current_stream().synchronize();
  host.fill_(3);
  current_stream().synchronize();
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, PinnedMemoryHasAnOrderToo) {
  const auto x = at::ones({4}, kGpu);
  auto host = at::empty({4}, at::TensorOptions().pinned_memory(true));
  host.copy_(x, true);
  at::Tensor y;
  on_side([&] { y = host.to(kGpu, true); });
  EXPECT_THAT(gpus.take_reports(), ElementsAre(HasSubstr("copy_ from the host on stream")));
  order(current_stream(), side_);
  on_side([&] { y = host.to(kGpu, true); });
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
  EXPECT_TRUE(at::equal(y.cpu(), at::ones({4})));
}

TEST_F(Order, StreamsOfTwoDevicesAreOrderedByEvents) {
  const c10::DeviceGuard on(kOtherGpu);
  auto x = at::ones({16}, kOtherGpu);
  order(current_stream(kOtherGpu), side_);
  {
    const c10::DeviceGuard on_first(kGpu);
    const c10::StreamGuard on_side_stream(side_);
    EXPECT_TRUE(at::equal(x.to(kGpu).cpu(), at::ones({16})));
  }
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, AMissingDeviceGuardIsReported) {
  auto x = at::ones({4}, kOtherGpu);
  EXPECT_THAT(
      gpus.take_reports(),
      ElementsAre("missing device guard: fill_ is launched on stream 0 of cuda:1 while cuda:0 is the current device"));
  const c10::DeviceGuard on(kOtherGpu);
  x.mul_(2);
  EXPECT_THAT(gpus.take_reports(), IsEmpty());
}

TEST_F(Order, TensorsOfTwoDevicesDoNotMix) {
  const auto x = at::ones({4}, kGpu);
  EXPECT_THROW(x.add(at::ones({4}, kOtherGpu)), c10::Error);
  EXPECT_THROW(x.add(at::ones({4})), c10::Error);
  EXPECT_THROW(at::ones({}).add_(x.sum()), c10::Error);
  EXPECT_TRUE(at::equal(x.add(at::ones({})).cpu(), at::full({4}, 2.0)));  // a number may lie on the host
}

}  // namespace
}  // namespace dtrain::test
