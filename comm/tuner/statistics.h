// The little statistics the tuner needs. Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace dtrain::comm {

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The sign test: how likely at least `wins` of `pairs` fair coins fall on that side.
inline double chance_of_wins(int wins, int pairs) {
  double total = 0, ways = 1;  // ways to choose k of pairs
  for (int k = 0; k <= pairs; ++k) {
    if (k >= wins) total += ways;
    ways = ways * (pairs - k) / (k + 1);
  }
  return total * std::pow(0.5, pairs);
}

}  // namespace dtrain::comm
