// Which of a number of events come at regular intervals, also where others come in between.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace dtrain::analysis {

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

}  // namespace dtrain::analysis
