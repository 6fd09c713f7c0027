// Training steps that took far longer than others, and what happened while they did: those that the rule StepOutlier
// counts (docs/rules.md), without the validations inside of steps. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/input.h"

namespace dtrain::analysis::report {

struct Outlier {
  const RankProfile* rank = nullptr;  // on which the step took longest
  const StepLine* step = nullptr;
  double seconds = 0;   // without validation
  double excess_s = 0;  // over that rank's median
  std::string group;    // of phases, in which most of the excess was spent
  double group_excess_s = 0;
  const SystemLine* system = nullptr;  // the sample of its host that covers its middle
};

struct OutlierReport {
  std::int64_t batches = 0;                 // each counts once, on however many ranks it was slow
  double seconds = 0;                       // their excess together
  std::vector<Outlier> longest;             // kMostOutliers at most, longest first
  std::vector<double> normal_s, outlier_s;  // mean of a step, by phase group
  std::int64_t train = 0, eval = 0;         // of all ranks, as the rule counts them
};

OutlierReport find_outliers(const Input& input);

}  // namespace dtrain::analysis::report
