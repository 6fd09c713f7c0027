// The observations for the test over steps: a run's training steps one by one, or in groups of a hundred if the run is
// so long that its dump holds sums of steps. They exclude the steps of the warm-up, and in steps validation and
// checkpoints.
//
// Steps far longer than the median are "long": they count for throughput, and not for phases. The limits are those by
// which a bounded dump keeps steps out of its windows, so that groups of steps in full and windows hold the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "measure/rows.h"

namespace dtrain::analysis::diff {

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

}  // namespace dtrain::analysis::diff
