// What every backend must do alike: a list of cases, each called on every rank at once with that rank's communicator.
// They report through GoogleTest; where ranks are processes, end one with an error when testing::Test::HasFailure().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/comm/communicator.h"

namespace dtrain::test {

struct ConformanceCase {
  std::string name;
  std::function<void(comm::Communicator&)> run;
};

struct ConformanceTraits {
  // float sums are those of rank 0 + rank 1 + …, bit for bit. False: in another order that never changes.
  bool rank_order = true;
  // float16 and bfloat16 are reduced in float32 and rounded once.
  bool wide_sums = true;
  // Means and scales are applied once, to the sum, in float32 at least; minima, maxima and products are scaled too.
  // False: inputs are multiplied by a factor that is rounded to their type, of sums and means alone.
  bool exact_scaling = true;
  // Minimum and maximum are NaN where one rank has NaN. False: a number may come before it.
  bool nan_wins = true;
  // Every type has every operation that is not refused for its kind. False: NCCL's alone.
  bool every_reduction = true;
};

std::vector<ConformanceCase> conformance_cases(const ConformanceTraits& traits = {});

}  // namespace dtrain::test
