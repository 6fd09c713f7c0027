// Statistics over values held in memory.
#pragma once

#include <cstddef>
#include <vector>

namespace dtrain::analysis {

// The smallest value that at least `share` of them do not exceed (nearest rank); 0 of none. Reorders `values`.
double quantile(std::vector<double>& values, double share);
double mean(const std::vector<double>& values);

}  // namespace dtrain::analysis
