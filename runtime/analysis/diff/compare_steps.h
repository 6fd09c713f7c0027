// The test over steps for the changes from A to B that noise does not explain. It resamples the steps of both runs to
// see how far that alone moves their medians and means. If the runs took turns, it draws whole turns, so that
// influences on both runs cancel. Plain functions and values; any thread may call. The same seed gives the same draws
// on every machine.
//
// Steps depend on their neighbours, so resampling draws whole blocks, which keep the dependence. It is the stationary
// bootstrap of Politis and Romano (1994): blocks of geometrically distributed lengths begin anywhere and
// continue at the front when they reach the end. The mean length is that of Politis and White (2004, corrected by
// Patton, Politis and White 2009). It follows from the autocorrelation up to the last significant lag, weighed by a
// flat-top window, and grows with the cube root of the number of observations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "dtrain/analysis/diff.h"
#include "measure/rows.h"

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

// The observations for the test over steps: a run's training steps one by one, or in groups of a hundred if the run is
// so long that its dump holds sums of steps. They exclude the steps of the warm-up, and in steps validation and
// checkpoints.
//
// Steps far longer than the median are "long": they count for throughput, and not for phases. The limits are those by
// which a bounded dump keeps steps out of its windows, so that groups of steps in full and windows hold the same.

inline constexpr std::size_t kPhases = profile::kPhaseCount;

// Sums; times are means over ranks, in seconds.
struct Totals {
  double steps = 0, samples = 0, time_s = 0;
  double ordinary_steps = 0;             // of `steps`, those that are not long
  std::array<double, kPhases> phases{};  // of ordinary steps; train_batch with its parts
  void add(const Totals& other);
};

struct Observation {
  double step_s = 0;   // a step; of a group the mean of its ordinary ones
  double start_s = 0;  // wall clock
  Totals totals;
};

struct Observations {
  std::vector<Observation> all;
  std::int64_t first_batch = 0, warm_up = 0;
  std::int64_t steps = 0, long_steps = 0;
  double time_s = 0, long_s = 0;
  bool has_wall_clock = false;  // start_s can be compared with another run's
};

// `grouped`: true: groups and windows; false: only the steps in full, which are the first 10,000 of a long run.
Observations observe(const RunProfile& run, bool grouped);
bool has_windows(const RunProfile& run);

// A turn of two runs that took turns: on one clock, steps of each lie between steps of the other, because one job made
// them in turns or because two jobs ran at the same time. Influences of the machine affect both, so neighbours can be
// compared with each other and only their difference is noise.
struct Turn {  // neighbours: indices into Observations::all
  std::vector<std::size_t> a, b;
};

// In the order of time; empty: too few for a test, as for runs that followed each other.
std::vector<Turn> find_turns(const Observations& a, const Observations& b);

inline constexpr std::size_t kLeastObservations = 30;

struct TestOptions {
  double confidence = 0.99;
  double min_effect = 0.01;
  int resamples = 2000;
  bool same_work = true;  // otherwise throughput alone is judged
};

struct SideTest {
  double autocorrelation = 0, block_length = 1;
};

struct StepTest {
  DiffQuantity step, throughput;
  std::vector<DiffQuantity> phases;  // without validation and checkpoints
  SideTest a, b;                     // in turns the same: of the turns
};

// Returns only the estimates if a run has fewer than kLeastObservations.
StepTest compare_steps(const Observations& a, const Observations& b, const std::vector<Turn>& turns,
                       const TestOptions& options);

}  // namespace dtrain::analysis::diff
