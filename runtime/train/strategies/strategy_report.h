// Describes the memory and time of a chosen strategy, for plan.json, the log and the summary. Pure functions.
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

// The gradients of one rank (of rank 0).
struct GradientFacts {
  bool decided = false;                            // otherwise steps with whole and sharded gradients are to take turns
  bool sharded = false;                            // after the exchange a rank keeps only gradients of its parts …
  bool short_of_memory = false;                    // … because a host was short of memory
  std::int64_t bytes = 0, kept_bytes = 0;          // in backward; between the update and the next backward
  std::optional<double> whole_ms{}, sharded_ms{};  // of a step, if both were tried
};

struct StrategyFacts {
  bool sharded = false;
  bool one_copy = false;                              // sharded, and the ranks of a host share one copy
  bool on_gpus = false;                               // each rank has its own parameters in a GPU's memory
  int world_size = 1, ranks_of_host = 1;              // ranks_of_host: of rank 0's host
  std::int64_t parameter_bytes = 0, state_bytes = 0;  // bytes of the model and its optimizer, once
  std::optional<double> replicated_ms, sharded_ms;    // of a step, if both were tried …
  std::vector<StrategyTurn> turns;                    // … and the batches of each try
  std::optional<GradientFacts> gradients{};
};

// Returns {"strategy", "one_copy", "host_bytes": {…}, "replicated_host_bytes": {…}, "replicated_ms", "sharded_ms",
// "turns": [{"strategy", "first_batch", "last_batch"}], "gradients": {"sharded", "bytes", "kept_bytes",
// "short_of_memory", "whole_ms", "sharded_ms"}, "text"}.
Json describe_strategy(const StrategyFacts& facts);

}  // namespace dtrain::train
