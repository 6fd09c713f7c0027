// What is worth changing in a run, most expensive first: each with its evidence, its cost and what to do. Plain values;
// any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct Finding {
  std::string id;        // "straggler", "loader", "stalls", "uneven_shard", "exchange", "memory_leak", …: stable
  std::string cause;     // "cpu_contention", "slow_loader", "slow_link", …: stable, from the evidence
  std::string title;     // one line, with the cost
  std::string evidence;  // the numbers behind it
  std::string advice;    // what to change
  double seconds = 0;    // its cost, of the loop's time
  double share = 0;      // … of the loop
  int rank = -1;         // -1: not a single rank
  std::string host;      // empty: not a single host
  bool fault = false;    // true: something is wrong; false: time that a healthy run could save
  std::optional<double> bytes_per_step;  // of a leak
};

Json to_json(const Finding& finding);

}  // namespace dtrain::analysis
