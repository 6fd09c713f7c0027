// The test by which the tuner decides whether one plan is faster than another.
#pragma once

#include <cmath>

namespace dtrain::comm {

// The sign test: returns the probability that at least `wins` of `pairs` fair coins fall on one given side.
inline double chance_of_wins(int wins, int pairs) {
  double total = 0, ways = 1;  // ways to choose k of pairs
  for (int k = 0; k <= pairs; ++k) {
    if (k >= wins) total += ways;
    ways = ways * (pairs - k) / (k + 1);
  }
  return total * std::pow(0.5, pairs);
}

}  // namespace dtrain::comm
