// What is measured: operations that are bound by one limit of the machine each. One thread calls; the operations use as
// many as libtorch is set to.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace dtrain::calibration {

class RankProcess;

enum Figure : std::size_t {
  kMemory,
  kAllReduce,
  kMatmulFloat32,
  kMatmulBfloat16,
  kMatmulFloat16,
  kConvolutionFloat32,
  kConvolutionBfloat16,
  kFigures  // how many there are
};

struct Workload {
  Figure figure = kMemory;    // which its rate tells; of several, the fastest does
  double amount = 0;          // bytes, or floating point operations, of one call
  std::function<void()> run;  // one call; takes milliseconds
};

// Bytes of each rank's buffer in the all-reduce; 0 for a single rank.
std::size_t all_reduce_bytes(int ranks);

// All of them, each called at least once. Which sizes of matrices there are depends on their times, and is the same on
// all ranks. Collective over the self.
std::vector<Workload> all_workloads(RankProcess& self);
// float32 matrix products alone.
std::vector<Workload> float32_workloads(RankProcess& self);

}  // namespace dtrain::calibration
