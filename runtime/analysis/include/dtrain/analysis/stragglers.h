// For which rank the others waited, how long, and why according to the evidence.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct Straggler {
  int rank = 0;
  std::string host;
  std::int64_t steps = 0;  // exchanged steps in which it came last
  double waited_s = 0;     // how long the others waited for it then, on average
  double cost_s = 0;       // the part of that beyond the wait for an ordinary rank: what the run would gain
  std::map<std::string, double> later_by_phase_s;  // later than the median of the others, by the phase that took it
  std::string cause;     // "loader", "compute", "cpu_contention", "uneven_shard", "network", "stalls", "none"
  std::string evidence;  // the numbers behind it
};

struct Stragglers {
  std::int64_t compared_steps = 0;             // those that all ranks recorded
  double waiting_s = 0;                        // waiting for the last rank: mean over ranks
  std::optional<std::int64_t> clock_error_ns;  // between hosts; 0 on one host; empty: not known
  std::vector<Straggler> ranks;                // the most waited for first
};

Json to_json(const Stragglers& stragglers);

}  // namespace dtrain::analysis
