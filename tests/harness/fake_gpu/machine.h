// All there is of the machine that is not there: one for the process, because libtorch has one CUDA.
#pragma once

#include <mutex>

#include "adversaries.h"
#include "graph.h"
#include "memory.h"
#include "order.h"
#include "pinned.h"
#include "report.h"
#include "streams.h"
#include "transfers.h"

namespace dtrain::test::fake_gpu {

struct Machine {
  const int devices;
  std::recursive_mutex mutex;  // held while any of these is used, and not while a kernel computes
  Report report;
  Adversaries adversaries;
  Shadow shadow;
  Streams streams;
  Memory memory;
  Pinned pinned;
  Transfers transfers;
  Graphs graphs;
};

// It lives until the process ends: libtorch frees tensors late.
Machine& machine();

}  // namespace dtrain::test::fake_gpu
