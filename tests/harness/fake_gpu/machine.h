// All there is of the machine that is not there: one for the process, because libtorch has one CUDA.
#pragma once

#include <vector>

#include "adversaries.h"
#include "graph.h"
#include "memory.h"
#include "mutex.h"
#include "order.h"
#include "pinned.h"
#include "report.h"
#include "streams.h"
#include "transfers.h"
#include "unfinished.h"

namespace dtrain::test::fake_gpu {

struct Machine {
  const std::vector<int> gpus;  // of the host's, those that the process sees, by device
  const int devices;
  Mutex mutex;  // held while any of these is used, and not while a kernel computes
  Report report;
  Adversaries adversaries;
  Shadow shadow;
  Streams streams;
  Unfinished unfinished;
  Memory memory;
  Pinned pinned;
  Transfers transfers;
  Graphs graphs;
};

// It lives until the process ends: libtorch frees tensors late.
Machine& machine();

}  // namespace dtrain::test::fake_gpu
