// Each wait of the host and each copy is counted, exactly.
#include "gpus.h"

namespace dtrain::test {
namespace {

using Counts = OnGpus;

template <typename F>
FakeGpuCounts count(F f) {
  gpus.take_counts();
  f();
  return gpus.take_counts();
}

TEST_F(Counts, KernelsDoNotWait) {
  auto x = at::ones({4, 4}, kGpu);
  const auto counts = count([&] { x.mul_(2).add_(x.matmul(x)).div_(at::scalar_tensor(2)); });
  EXPECT_EQ(counts.kernels, 4);
  EXPECT_EQ(counts.host_syncs, 0);
  EXPECT_EQ(counts.copies_to_device + counts.copies_to_host + counts.copies_on_device, 0);
}

TEST_F(Counts, OneKernelForManyTensors) {
  std::vector<at::Tensor> a{at::ones({4}, kGpu), at::ones({5}, kGpu)}, b{at::ones({4}, kGpu), at::ones({5}, kGpu)};
  EXPECT_EQ(count([&] { at::_foreach_copy_(a, b); }).kernels, 1);
  EXPECT_EQ(count([&] { at::_foreach_add_(a, b); }).kernels, 1);
  EXPECT_TRUE(at::equal(a[1].cpu(), at::full({5}, 2.0)));
}

TEST_F(Counts, WaitsOfTheHost) {
  auto x = at::ones({4}, kGpu);
  c10::Event event(at::kCUDA);
  event.record(current_stream());
  EXPECT_EQ(count([&] { event.synchronize(); }).host_syncs, 1);
  EXPECT_EQ(count([&] { current_stream().synchronize(); }).host_syncs, 1);
  EXPECT_EQ(count([&] { guard().synchronizeDevice(0); }).host_syncs, 1);
  EXPECT_EQ(count([&] { event.query(); }).host_syncs, 0);
  const auto item = count([&] { x[0].item<float>(); });
  EXPECT_EQ(item.host_syncs, 1);
  EXPECT_EQ(item.scalar_reads, 1);
}

TEST_F(Counts, SizesThatDependOnDataWait) {
  const auto x = at::arange(4, kGpu), mask = x.gt(1);
  const auto indices = at::tensor({1, 2}, at::TensorOptions(kGpu).dtype(at::kLong));
  EXPECT_EQ(count([&] { at::nonzero(x); }).host_syncs, 1);
  EXPECT_EQ(count([&] { at::masked_select(x, mask); }).host_syncs, 1);
  EXPECT_EQ(count([&] { x.index({mask}); }).host_syncs, 1);
  EXPECT_EQ(count([&] { at::equal(x, x); }).host_syncs, 1);
  EXPECT_EQ(count([&] { x.index({indices}); }).host_syncs, 0);
  EXPECT_EQ(count([&] { x.index({indices.cpu()}); }).pageable_copies, 2);  // cpu(), and back
}

TEST_F(Counts, CopiesFromPageableMemoryBlock) {
  const auto pageable = at::ones({4}), pinned = pageable.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(pageable.is_pinned());
  for (const bool non_blocking : {false, true}) {
    const auto counts = count([&] { pageable.to(kGpu, non_blocking); });
    EXPECT_EQ(counts.copies_to_device, 1);
    EXPECT_EQ(counts.pageable_copies, 1);
    EXPECT_EQ(counts.host_syncs, 1);
  }
  const auto blocking = count([&] { pinned.to(kGpu); });
  EXPECT_EQ(blocking.pageable_copies, 0);
  EXPECT_EQ(blocking.host_syncs, 1);
  const auto asynchronous = count([&] { pinned.to(kGpu, true); });
  EXPECT_EQ(asynchronous.copies_to_device, 1);
  EXPECT_EQ(asynchronous.pageable_copies, 0);
  EXPECT_EQ(asynchronous.host_syncs, 0);
}

TEST_F(Counts, PinnedMemoryOfAnotherTypeOrLayoutIsCopiedThroughPageableMemory) {
  const auto pinned = at::ones({4, 4}, at::kDouble).pin_memory();
  auto x = at::empty({4, 4}, kGpu);
  EXPECT_EQ(count([&] { x.copy_(pinned, true); }).pageable_copies, 1);
  EXPECT_EQ(count([&] { x.copy_(at::ones({4, 4}).pin_memory().t(), true); }).pageable_copies, 1);
  EXPECT_EQ(count([&] { x.t().copy_(at::ones({4, 4}).pin_memory(), true); }).pageable_copies, 0);
}

TEST_F(Counts, CopiesToTheHost) {
  const auto x = at::ones({4}, kGpu);
  const auto blocking = count([&] { x.cpu(); });
  EXPECT_EQ(blocking.copies_to_host, 1);
  EXPECT_EQ(blocking.pageable_copies, 1);
  EXPECT_EQ(blocking.host_syncs, 1);
  auto pinned = at::empty({4}, at::TensorOptions().pinned_memory(true));
  const auto asynchronous = count([&] { pinned.copy_(x, true); });
  EXPECT_EQ(asynchronous.copies_to_host, 1);
  EXPECT_EQ(asynchronous.host_syncs, 0);
}

TEST_F(Counts, CopiesOnADevice) {
  const auto x = at::ones({4}, kGpu);
  const auto counts = count([&] { x.clone(); });
  EXPECT_EQ(counts.copies_on_device, 1);
  EXPECT_EQ(counts.allocations, 1);
  EXPECT_EQ(counts.host_syncs, 0);
}

}  // namespace
}  // namespace dtrain::test
