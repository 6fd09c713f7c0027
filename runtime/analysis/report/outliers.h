// Steps that took far longer than others, and what happened while they did. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/input.h"

namespace dtrain::analysis::report {

struct Outlier {
  const RankProfile* rank = nullptr;  // on which the step took longest
  const StepLine* step = nullptr;
  double excess_s = 0;  // over that rank's median
  std::string group;    // of phases, in which most of the excess was spent
  double group_excess_s = 0;
  bool eval = false;                   // most of the excess is validation
  const SystemLine* system = nullptr;  // the sample of its host that was taken last before its end or first after it
};

struct OutlierReport {
  double limit_sigmas = 3;
  std::int64_t count = 0;                   // batches; each counts once, however many ranks it was slow on
  double seconds = 0;                       // their excess together
  std::vector<Outlier> longest;             // kMostOutliers at most, longest first
  std::vector<double> normal_s, outlier_s;  // mean of a step, by phase group
  double eval_share = 0;                    // of the outliers
};

OutlierReport find_outliers(const Input& input);

}  // namespace dtrain::analysis::report
