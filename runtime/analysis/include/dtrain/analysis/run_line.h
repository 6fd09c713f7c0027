// A run in one line: how it went, its results, and its settings. They are read from plan.json, events.jsonl and
// metrics.jsonl alone, so that a folder of many runs is read quickly. Plain values; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/analysis/curves.h"
#include "dtrain/analysis/settings.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct RunLine {
  std::filesystem::path folder;
  std::string name;    // of the experiment
  std::string state;   // "queued", "running", how it ended, or "gone"; empty: nothing is recorded
  bool ended = false;  // its end is recorded
  std::int64_t attempts = 0;
  std::optional<double> started_s;   // of the first attempt, in seconds since 1970
  std::optional<double> duration_s;  // of all attempts, without the time between them
  std::int64_t batches = 0;          // the last one with metrics
  std::optional<double> samples_per_s;
  std::optional<CurveValue> loss;  // the last value of the training
  std::string metric;              // searcher.metric, or else the loss; empty: the run has neither
  bool smaller_is_better = true;
  std::optional<CurveValue> last_metric, best_metric;  // of validations
  Settings settings;                                   // of the experiment
};

struct ListedRun {
  RunLine line;
  RunCurves curves;
};
// `now_s`: the present in seconds since 1970, for an attempt whose end is not recorded. Empty: no process of the run is
// left; without a recorded end it is then "gone".
ListedRun read_listed_run(const std::filesystem::path& run_dir, std::optional<double> now_s);

// Times are in seconds; values that are not known are null.
Json to_json(const RunLine& run);

}  // namespace dtrain::analysis
