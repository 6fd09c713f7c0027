// A run in a line: how it went, what it came to, and its settings. Read from plan.json, events.jsonl and metrics.jsonl
// alone, so that a folder of many runs is read at once. Plain values; any thread.
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
  bool ended = false;  // that its end is recorded
  std::int64_t attempts = 0;
  std::optional<double> started_s;   // of the first attempt, in seconds since 1970
  std::optional<double> duration_s;  // of all attempts, without the time between them
  std::int64_t batches = 0;          // the last one with metrics
  std::optional<double> samples_per_s;
  std::optional<CurveValue> loss;  // the last one of training
  std::string metric;              // searcher.metric, or else the loss; empty: the run has neither
  bool smaller_is_better = true;
  std::optional<CurveValue> last_metric, best_metric;  // of validations
  Settings settings;                                   // of the experiment
};

struct ListedRun {
  RunLine line;
  RunCurves curves;
};
// An attempt whose end is not recorded goes on at `now_s`, in seconds since 1970. Empty: no process of the run is left,
// so that such a run is "gone".
ListedRun read_listed_run(const std::filesystem::path& run_dir, std::optional<double> now_s);

// Times in seconds, values that are not known as null.
Json to_json(const RunLine& run);

}  // namespace dtrain::analysis
