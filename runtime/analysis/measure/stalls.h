// Steps that take far longer than the others, as a whole run's pattern: how often, in which phase, whose, and whether
// at regular intervals.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "measure/evidence.h"

namespace dtrain::analysis {

// Which of a number of events come at regular intervals, also where others come in between.
struct Regular {
  double interval = 0;
  std::vector<std::size_t> members;  // of the events, ascending
};

// Of events at these moments (ascending) that weigh so much each. All of them, where 70% of the intervals between
// neighbours are alike; else those which one interval leads from one to the next, where they weigh at least half of
// all, hardly any is missing, and so many would not have met by chance. Empty: there is no such interval. Moments are
// known to within `resolution`.
std::optional<Regular> find_regular(const std::vector<double>& moments, const std::vector<double>& weights,
                                    double resolution);

struct Stalls {
  std::int64_t events = 0;     // up to three steps in a row count as one; more are none
  double seconds = 0;          // beyond the median step, all of them
  double median_excess_s = 0;  // of one event
  double mean_excess_s() const { return events > 0 ? seconds / static_cast<double>(events) : 0; }
  double step_s = 0;  // the median step
  int rank = -1;      // index into RunProfile::ranks of the one that causes most; -1: no single one
  profile::Phase phase = profile::Phase::kOther;  // where most of it passes; kAllreduceWait: in the exchange itself
  double waited_s = 0;                            // of what the others wait for `rank`, the part in these steps
  // Regular intervals; then all of the above is about those that come at them.
  std::optional<double> every_batches, every_s;
  std::int64_t other_events = 0;  // in between
};

// Empty where fewer than three steps stand out. The first steps, validation, checkpoints and metrics do not count.
std::optional<Stalls> find_stalls(const Evidence& evidence);

}  // namespace dtrain::analysis
