// What the choice of a strategy means in memory and time, for plan.json, the log and the summary. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::train {

struct StrategyTurn {
  bool sharded = false;
  std::int64_t first_batch = 0, last_batch = 0;
};

struct StrategyFacts {
  bool sharded = false;
  bool one_copy = false;                              // sharded, and the ranks of a host share one copy
  bool on_gpus = false;                               // each rank has its own in a GPU's memory
  int world_size = 1, ranks_of_host = 1;              // of rank 0's host
  std::int64_t parameter_bytes = 0, state_bytes = 0;  // of the model and its optimizer, once
  std::optional<double> replicated_ms, sharded_ms;    // of a step, where both were tried …
  std::vector<StrategyTurn> turns;                    // … and where
};

// {"strategy", "one_copy", "host_bytes": {…}, "replicated_host_bytes": {…}, "replicated_ms", "sharded_ms",
// "turns": [{"strategy", "first_batch", "last_batch"}], "text"}
Json describe_strategy(const StrategyFacts& facts);

}  // namespace dtrain::train
