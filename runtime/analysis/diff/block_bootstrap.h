// Resampling of observations that depend on their neighbours, as steps do: whole blocks are drawn, so that what hangs
// together stays together. Plain functions and values; the same seed gives the same draws on every machine.
//
// The stationary bootstrap of Politis and Romano (1994): blocks of geometrically distributed lengths that begin
// anywhere and go on at the front where they reach the end. The mean length is the one of Politis and White (2004,
// corrected by Patton, Politis and White 2009): it follows from the autocorrelation up to the lag beyond which nothing
// is left of it, weighed by a flat-top window, and grows with the cube root of the number of observations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "dtrain/analysis/diff.h"

namespace dtrain::analysis::diff {

// With its neighbour `lag` further on: -1 to 1; 0 of a constant series.
double autocorrelation(std::span<const double> series, std::size_t lag);

// The mean length of blocks for means of this series: from 1 to 3 sqrt(n), and to a third of them.
double block_length(std::span<const double> series);

class StationaryBootstrap {
 public:
  StationaryBootstrap(std::size_t size, double block_length, std::uint64_t seed);
  // As many indices as there are observations, valid until the next call.
  const std::vector<std::size_t>& draw();

 private:
  double uniform();  // [0, 1)
  double go_on_;     // that a block has another observation
  std::mt19937_64 random_;
  std::vector<std::size_t> indices_;
};

// Between the quantiles that leave half of 1 - `confidence` on either side. Reorders `draws`.
DiffInterval percentile_interval(std::vector<double>& draws, double confidence);

// Intervals around `estimates` that hold all at once with `confidence`, one each: the largest of the deviations in each
// draw, each over its standard deviation, decides how wide they are (the maximum of t statistics). `draws[i]` belongs
// to `estimates[i]`; all are as long.
std::vector<DiffInterval> joint_intervals(std::span<const double> estimates, std::span<const std::vector<double>> draws,
                                          double confidence);

}  // namespace dtrain::analysis::diff
