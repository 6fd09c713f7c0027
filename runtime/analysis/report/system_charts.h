// Charts of what agents sampled: a line for each host, GPU or rank. Any thread may call.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "report/input.h"

namespace dtrain::analysis::report {

// The metrics by name, each with the words for it; null where no agent has any of them.
struct MetricLine {
  const char* metric;
  const char* words;
};
Json host_series(const Input& input, const std::vector<MetricLine>& metrics, const std::string& title,
                 const std::string& unit);
// One metric of every GPU. `of_total`: as percent of the GPU's memory that is taken, from its free memory.
Json gpu_series(const Input& input, const std::string& metric, const std::string& title, const std::string& unit,
                bool of_total = false);
// The share of time each GPU spent at each utilization.
Json gpu_histogram(const Input& input);
// What each drawn rank has reserved of its GPU's memory; null where no rank recorded it.
Json rank_gpu_memory_series(const Input& input);
// Resident memory of each drawn rank.
Json rank_memory_series(const Input& input);

}  // namespace dtrain::analysis::report
