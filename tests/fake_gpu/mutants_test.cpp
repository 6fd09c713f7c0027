// The right loop is clean, and each mistake in it is found: by a report, by a count, by an error, or by other weights.
#include <csignal>

#include "loop.h"

namespace dtrain::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

using Mutants = OnGpus;
using MutantsDeathTest = OnGpus;

bool weights_are_right(const LoopResult& result) {
  static const LoopResult right = run_loop(at::kCPU, false, Mutant::kNone);
  return at::equal(result.weights, right.weights) && result.loss == right.loss;
}

void expect_report(Mutant mutant, const std::string& text, bool graph = false) {
  EXPECT_TRUE(
      weights_are_right(run_loop(kGpu, graph, mutant)));  // kernels compute in launch order: nothing else shows it
  EXPECT_THAT(gpus.take_reports(), Contains(HasSubstr(text)));
}

TEST_F(Mutants, TheRightLoopIsClean) {
  for (const auto device : {kGpu, kOtherGpu}) {
    for (const bool graph : {false, true}) {
      const auto result = run_loop(device, graph, Mutant::kNone);
      EXPECT_TRUE(weights_are_right(result));
      EXPECT_EQ(result.counts.host_syncs, 0);
      EXPECT_EQ(result.counts.pageable_copies, 0);
      EXPECT_EQ(result.counts.graph_launches, graph ? 5 : 0);
      EXPECT_EQ(result.counts.copies_to_device, 3 * 8);  // inputs, labels and rate of each batch
      EXPECT_EQ(result.counts.copies_to_host, 0);
      EXPECT_EQ(result.counts.copies_on_device, graph ? 2 * 5 : 0);  // to the graph's inputs and labels
      EXPECT_EQ(result.counts.kernels, 27 * (graph ? 8 - 5 : 8));
      EXPECT_THAT(gpus.take_reports(), IsEmpty());
    }
  }
}

TEST_F(Mutants, TheRightLoopIsCleanWhenEventsTakeTheirTime) {
  gpus.delay_queries(3);
  for (const bool graph : {false, true}) {
    EXPECT_TRUE(weights_are_right(run_loop(kGpu, graph, Mutant::kNone)));
    EXPECT_THAT(gpus.take_reports(), IsEmpty());
  }
}

TEST_F(Mutants, NoWaitBeforeAllReduce) {
  expect_report(Mutant::kNoWaitBeforeAllReduce, "all-reduce on stream");
  expect_report(Mutant::kReadyEventTooEarly, "what _foreach_copy_ on stream");
}

TEST_F(Mutants, AllReduceOnAnotherStream) {
  expect_report(Mutant::kAllReduceOnAnotherStream, "missing wait: all-reduce on stream");
}

TEST_F(Mutants, NoWaitAfterAllReduce) {
  expect_report(Mutant::kNoWaitAfterAllReduce, "_fused_adamw_ on stream");
}

TEST_F(Mutants, BatchWithoutRecordStream) {
  expect_report(Mutant::kBatchWithoutRecordStream, "freed too early");
  expect_report(Mutant::kBatchWithoutRecordStream, "freed too early", true);
}

TEST_F(Mutants, BatchNotWaitedFor) {
  expect_report(Mutant::kBatchNotWaitedFor, "what copy_ from the host on stream");
}

TEST_F(Mutants, PinnedBatchOverwritten) {
  expect_report(Mutant::kPinnedBatchOverwritten, "the host writes pinned memory");
}

TEST_F(Mutants, BufferFreedInUse) {
  expect_report(Mutant::kBufferFreedInUse, "freed too early: all-reduce on stream");
}

TEST_F(Mutants, MissingDeviceGuard) {
  run_loop(kOtherGpu, false, Mutant::kMissingDeviceGuard);
  EXPECT_THAT(gpus.take_reports(), Contains(HasSubstr("missing device guard")));
}

TEST_F(Mutants, PageableBatch) {
  const auto counts = run_loop(kGpu, false, Mutant::kPageableBatch).counts;
  EXPECT_EQ(counts.pageable_copies, 16);  // inputs and labels of 8 batches
  EXPECT_EQ(counts.host_syncs, 16);
}

TEST_F(Mutants, ItemInStep) {
  const auto counts = run_loop(kGpu, false, Mutant::kItemInStep).counts;
  EXPECT_EQ(counts.scalar_reads, 8);
  EXPECT_EQ(counts.host_syncs, 8);
  EXPECT_THROW(run_loop(kGpu, true, Mutant::kItemInStep), c10::AcceleratorError);
}

TEST_F(Mutants, ScaleReadOnHost) {
  const auto counts = run_loop(kGpu, false, Mutant::kScaleReadOnHost).counts;
  EXPECT_EQ(counts.scalar_reads, 8);
  EXPECT_EQ(counts.host_syncs, 8);
  EXPECT_THROW(run_loop(kGpu, true, Mutant::kScaleReadOnHost), c10::AcceleratorError);
}

TEST_F(Mutants, MetricReadTooEarly) {
  EXPECT_FALSE(weights_are_right(run_loop(kGpu, false, Mutant::kMetricReadTooEarly)));
}

TEST_F(MutantsDeathTest, HostRead) {
  EXPECT_EXIT(run_loop(kGpu, false, Mutant::kHostRead), testing::KilledBySignal(SIGSEGV),
              "last written by nll_loss_forward");
}

TEST_F(Mutants, FrozenRate) {
  EXPECT_FALSE(weights_are_right(run_loop(kGpu, true, Mutant::kFrozenRate)));
}

TEST_F(Mutants, HostTensorCaptured) {
  EXPECT_FALSE(weights_are_right(run_loop(kGpu, true, Mutant::kHostTensorCaptured)));
}

TEST_F(Mutants, PinnedMemoryFreedAfterTheCapture) {
  run_loop(kGpu, true, Mutant::kPinnedMemoryFreed);
  EXPECT_THAT(gpus.take_reports(), Contains(HasSubstr("pinned memory that was freed after the capture")));
}

TEST_F(Mutants, UnevenBatchInGraph) {
  EXPECT_FALSE(weights_are_right(run_loop(kGpu, true, Mutant::kUnevenBatchInGraph)));
}

TEST_F(Mutants, QueryInCapture) {
  EXPECT_THROW(run_loop(kGpu, true, Mutant::kQueryInCapture), c10::AcceleratorError);
}

TEST_F(Mutants, SideStreamNotJoined) {
  EXPECT_THROW(run_loop(kGpu, true, Mutant::kSideStreamNotJoined), c10::AcceleratorError);
}

}  // namespace
}  // namespace dtrain::test
