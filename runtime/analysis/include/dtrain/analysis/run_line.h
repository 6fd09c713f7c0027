// A run in one line: its state, its results, and its settings. Only plan.json, events.jsonl and metrics.jsonl are read,
// so that a folder of many runs is read quickly. Plain values and functions; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/analysis/curves.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

// Settings of a run as text.

// Values by their keys; dots join nested keys ("optimizer.lr"). A key whose value is null counts as missing.
using Settings = std::map<std::string, std::string>;

// The settings in plan.json, without values that were measured or derived from others.
Settings settings_of_plan(const Json& plan);
// The settings of the experiment in plan.json.
Settings settings_of_experiment(const Json& plan);

struct SettingDifference {
  std::string key;
  std::vector<std::string> values;  // one for each run; "-": the run does not have it
};
// The settings in which the runs differ, by key; the settings of rules come last.
std::vector<SettingDifference> differences_of(std::span<const Settings> runs);

// Returns the text shortened for a table: "a very long …".
std::string shortened_setting(const std::string& text);

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
// `now_s`: the current time in seconds since 1970, for an attempt whose end is not recorded. Empty: no process of the
// run is left, so a run without a recorded end is "gone".
ListedRun read_listed_run(const std::filesystem::path& run_dir, std::optional<double> now_s);

// Times are in seconds; values that are not known are null.
Json to_json(const RunLine& run);

}  // namespace dtrain::analysis
