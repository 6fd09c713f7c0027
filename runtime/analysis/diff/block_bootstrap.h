// Resampling of observations that depend on their neighbours, as steps do: it draws whole blocks, which keep the
// dependence. Plain functions and values; the same seed gives the same draws on every machine.
//
// The stationary bootstrap of Politis and Romano (1994): blocks of geometrically distributed lengths begin anywhere and
// continue at the front when they reach the end. The mean length is that of Politis and White (2004, corrected by
// Patton, Politis and White 2009). It follows from the autocorrelation up to the last significant lag, weighed by a
// flat-top window, and grows with the cube root of the number of observations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "dtrain/analysis/diff.h"

namespace dtrain::analysis::diff {

// Returns the correlation of values `lag` apart: -1 to 1; 0 for a constant series.
double autocorrelation(std::span<const double> series, std::size_t lag);

// Returns the mean length of blocks for means of this series: from 1 to 3 sqrt(n), and at most a third of the values.
double block_length(std::span<const double> series);

class StationaryBootstrap {
 public:
  StationaryBootstrap(std::size_t size, double block_length, std::uint64_t seed);
  // Returns as many indices as there are observations, valid until the next call.
  const std::vector<std::size_t>& draw();

 private:
  double uniform();  // [0, 1)
  double go_on_;     // probability that a block has another observation
  std::mt19937_64 random_;
  std::vector<std::size_t> indices_;
};

// Returns the interval between the quantiles that leave half of 1 - `confidence` on either side. Reorders `draws`.
DiffInterval percentile_interval(std::vector<double>& draws, double confidence);

// Returns an interval for each of `estimates` that together hold with `confidence`: the largest deviation in each draw,
// in units of its standard deviation, decides their width (the maximum of t statistics). `draws[i]` belongs to
// `estimates[i]`; all have the same length.
std::vector<DiffInterval> joint_intervals(std::span<const double> estimates, std::span<const std::vector<double>> draws,
                                          double confidence);

}  // namespace dtrain::analysis::diff
