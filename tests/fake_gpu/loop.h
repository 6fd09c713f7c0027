// A small training loop as an engine for GPUs has it, and the mistakes that one can make in it.
#pragma once

#include <vector>

#include "gpus.h"

namespace dtrain::test {

// Each is planted in one place of loop.cpp.
enum class Mutant {
  kNone,
  kNoWaitBeforeAllReduce,
  kNoWaitAfterAllReduce,
  kReadyEventTooEarly,
  kAllReduceOnAnotherStream,
  kBatchWithoutRecordStream,
  kBatchNotWaitedFor,
  kPinnedBatchOverwritten,
  kPageableBatch,
  kBufferFreedInUse,
  kItemInStep,
  kScaleReadOnHost,
  kHostRead,
  kMetricReadTooEarly,
  kMissingDeviceGuard,
  // In graphs:
  kFrozenRate,
  kHostTensorCaptured,
  kPinnedMemoryFreed,
  kUnevenBatchInGraph,
  kQueryInCapture,
  kSideStreamNotJoined,
};

struct Batch {
  at::Tensor inputs, labels;
};

// The last one is smaller.
std::vector<Batch> make_batches();

struct LoopResult {
  at::Tensor weights;
  double loss = 0;       // the sum over all batches
  FakeGpuCounts counts;  // of the steps
};

// One epoch. On a GPU batches come through pinned memory and a stream of their own, gradients are reduced on another,
// and the host waits for nothing but the steps before the last. With `graph` full batches are replays of one graph.
LoopResult run_loop(at::Device device, bool graph, Mutant mutant);

}  // namespace dtrain::test
