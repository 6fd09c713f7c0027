// The distance of computing from the limits of the hardware: FLOPs, MFU, and the roofline of each operator (Williams,
// Waterman, Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009). It is
// computed from the operators that ranks counted in a few batches (docs/profile-format.md) and from the limits of their
// machines in plan.json. Plain values; any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::analysis {

// Calls of an operator in the counted batch of a rank.
struct OperatorLimit {
  std::string name, dtype, format;
  std::vector<std::vector<std::int64_t>> shapes;
  std::int64_t calls = 0, flops = 0, bytes = 0;
  double seconds = 0;
  // The longer of two times: its FLOPs at the rate of its type, and its bytes at the memory's rate. At most `seconds`:
  // operators can be faster than memory, because of caches. Empty: the limit is not known.
  std::optional<double> ideal_s;
  bool by_memory = false;  // the bytes take longer than the FLOPs
};

struct Roofline {
  // FLOPs of a sample in forward and backward; 0: not counted.
  double flops_per_sample = 0;
  std::string dtype;   // the type of most FLOPs
  std::string device;  // "cpu", "cuda"
  // The operators of the first rank that has a table of them. Empty on GPUs, where operators have no times here.
  int rank = -1;
  std::string host;
  std::int64_t batch = 0, samples = 0;
  std::vector<OperatorLimit> operators;       // sorted by how far they exceed their ideal time
  std::optional<profile::RankLimits> limits;  // of that rank; empty: its host has none

  // Limits of all ranks together; empty if a rank's host has no limit.
  std::optional<double> limit_gflops, limit_gb_s;
  // GB a second that operators without FLOPs read and write, all ranks together; empty: not measured.
  std::optional<double> achieved_gb_s;
  // Seconds of all batches if each operator took its ideal time; mean over ranks. Empty: not known.
  std::optional<double> ideal_s;

  // Returns the seconds of the counted batch.
  double seconds() const;
};

Json to_json(const Roofline& roofline);

}  // namespace dtrain::analysis
