// The measured operations, each bound by one limit of the machine. One thread calls; the operations use libtorch's
// number of threads.
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
  kFigures  // number of figures
};

struct Workload {
  Figure figure = kMemory;    // the figure that its rate measures; the fastest workload of a figure counts
  double amount = 0;          // bytes or floating-point operations of one call
  std::function<void()> run;  // one call, which takes milliseconds
};

// Returns the bytes of each rank's buffer in the all-reduce; 0 for a single rank.
std::size_t all_reduce_bytes(int ranks);

// Returns all workloads, each called at least once. The sizes of matrices depend on their times and are the same on all
// ranks. Collective over the ranks of `self`.
std::vector<Workload> all_workloads(RankProcess& self);
// Returns the float32 matrix products alone.
std::vector<Workload> float32_workloads(RankProcess& self);

}  // namespace dtrain::calibration
