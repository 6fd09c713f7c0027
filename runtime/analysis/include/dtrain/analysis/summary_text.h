// The summary as text for a terminal. Any thread may call.
#pragma once

#include <string>

#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

struct TextOptions {
  int width = 100;     // columns; bars take the rest
  bool color = false;  // ANSI sequences
};

// Returns the parts of the time, most expensive first; load balance; communication; the hosts; and what to look at.
std::string render_summary(const RunSummary& summary, const TextOptions& options);

}  // namespace dtrain::analysis
