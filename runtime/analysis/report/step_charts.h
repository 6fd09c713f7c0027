// Charts of the durations of steps: over time, and how they are distributed. Any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "report/input.h"

namespace dtrain::analysis::report {

// How far a chart of durations shows them, so that one validation does not flatten all batches.
struct ShownDurations {
  std::optional<double> up_to_s;     // empty: all of them
  std::int64_t longer = 0, all = 0;  // batches of all ranks; those beyond
};
// Up to a fifth beyond the 99th percentile of the batches without validation and checkpoint, where some are longer.
ShownDurations shown_durations(const Input& input);
// " 12 of 3,000 batches took longer than the axis shows; …"; empty: all are shown.
std::string text_of(const ShownDurations& shown);

// A line for each drawn rank, and all ranks together where there are several; null without steps.
Json step_series(const Input& input, const ShownDurations& shown);
// Of each host, and (shown when it is chosen) of each drawn rank; null without steps.
Json step_histogram(const Input& input);

}  // namespace dtrain::analysis::report
