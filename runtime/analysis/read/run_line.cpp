#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/json.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/run_records.h"
#include "read/json_fields.h"
#include "read/metrics_file.h"

namespace dtrain::analysis {

namespace fs = std::filesystem;

namespace {

void add_events(const std::vector<Json>& events, std::optional<double> now_s, RunLine& run) {
  for (const Json& event : events) {
    const std::string what = text(event, "event");
    if (what == "submitted" || what == "queued" || what == "job_submitted") run.state = "queued", run.ended = false;
    if (what == "run_started" || what == "rank_started" || what == "attempt_started") {
      run.state = "running", run.ended = false;
    }
    if (what == "run_ended") run.state = text(event, "state"), run.ended = true;
  }
  if (!run.ended && !run.state.empty() && !now_s) run.state = "gone";
  const RunHistory history = history_of(events);
  run.attempts = std::ssize(history.attempts);
  for (const AttemptAccount& attempt : history.attempts) {
    if (!run.started_s) run.started_s = attempt.started_s;
    const bool goes_on = now_s && !run.ended && !attempt.ended_s && &attempt == &history.attempts.back();
    const double end = goes_on ? *now_s : attempt.ended_s.value_or(attempt.seen_s);
    run.duration_s = run.duration_s.value_or(0) + std::max(0.0, end - attempt.started_s);
  }
}

void add_metric(const Json& experiment, const RunCurves& curves, RunLine& run) {
  const Json& searcher = object_at(experiment, "searcher");
  run.metric = text(searcher, "metric");
  run.smaller_is_better = value_at<bool>(searcher, "smaller_is_better").value_or(true);
  if (run.metric.empty() && curves.find(CurveKind::kValidation, "loss") != nullptr) run.metric = "loss";
  const Curve* const curve = curves.find(CurveKind::kValidation, run.metric);
  if (!curve) return;
  run.last_metric = curve->last();
  run.best_metric = run.smaller_is_better ? curve->least() : curve->greatest();
}

Json to_json(const std::optional<CurveValue>& value) {
  if (!value) return {};
  return {{"value", number_or_text(value->value)}, {"batch", value->batch}};
}

}  // namespace

ListedRun read_listed_run(const fs::path& run_dir, std::optional<double> now_s) {
  profile::Damage damage;
  Json plan = profile::read_plan(run_dir, damage);
  config::hide_variables(plan);
  std::vector<Json> events;
  damage.add(profile::read_events(run_dir, [&](Json&& event) { events.push_back(std::move(event)); }));
  CurveReader reader(history_of(events).attempts);
  damage.add(read_metrics(run_dir, reader));
  ListedRun listed{{}, reader.curves()};
  RunLine& run = listed.line;
  run.damage = damage.text();
  const RunCurves& curves = listed.curves;
  run.folder = run_dir;
  run.name = text(plan, "name");
  run.settings = settings_of_experiment(plan);
  add_events(events, now_s, run);
  run.batches = curves.batches;
  run.samples_per_s = curves.samples_per_s;
  if (const Curve* loss = curves.find(CurveKind::kTraining, "loss")) run.loss = loss->last();
  add_metric(object_at(plan, "experiment"), curves, run);
  return listed;
}

Json to_json(const RunLine& run) {
  return {{"folder", run.folder.string()},
          {"name", run.name},
          {"state", run.state.empty() ? Json() : Json(run.state)},
          {"attempts", run.attempts},
          {"started_s", or_null(run.started_s)},
          {"duration_s", or_null(run.duration_s)},
          {"batches", run.batches},
          {"samples_per_s", or_null(run.samples_per_s)},
          {"loss", to_json(run.loss)},
          {"metric", run.metric.empty() ? Json() : Json(run.metric)},
          {"smaller_is_better", run.smaller_is_better},
          {"last_metric", to_json(run.last_metric)},
          {"best_metric", to_json(run.best_metric)},
          {"damage", run.damage.empty() ? Json() : Json(run.damage)}};
}

namespace {

// Keys of the plan that are no settings, follow from others or were measured.
constexpr std::array<std::string_view, 19> kNoSettings = {
    "name",          "started_by", "batch_per_rank",  "placement",    "ranks",   "warnings", "overrides",
    "description",   "labels",     "experiment_file", "cluster_file", "command", "text",     "link",
    "replicated_ms", "sharded_ms", "turns",           "steps",        "reason"};
// Results in the plan: of compression and local steps, whose settings are in the experiment, and the limits of machines
// and GPUs.
constexpr std::array<std::string_view, 4> kAccounts = {"compression", "local_sgd", "limits", "gpu_limits"};
// Mappings whose keys users choose; each key is a setting.
constexpr std::array<std::string_view, 2> kFree = {"experiment.hyperparameters", "experiment.data"};
constexpr std::string_view kExperiment = "experiment.";
constexpr std::size_t kLongest = 60;

bool is_setting(const std::string& path, const std::string& key) {
  const auto above = [&](std::string_view free) { return path == free || path.starts_with(std::string(free) + "."); };
  return std::any_of(kFree.begin(), kFree.end(), above) || std::ranges::find(kNoSettings, key) == kNoSettings.end();
}

void flatten(const Json& value, const std::string& path, Settings& into) {
  if (value.is_object()) {
    for (const auto& [key, below] : value.items()) {
      if (is_setting(path, key)) flatten(below, path.empty() ? key : path + "." + key, into);
    }
    return;
  }
  if (value.is_null()) return;
  const bool is_list = value.is_array() && !value.empty() && value.front().is_object();
  into[path] = is_list ? std::to_string(value.size()) : value.is_string() ? value.get<std::string>() : to_line(value);
}

}  // namespace

Settings settings_of_plan(const Json& plan) {
  Settings result;
  if (!plan.is_object()) return result;
  Json settings = plan;
  for (const std::string_view account : kAccounts) settings.erase(std::string(account));
  flatten(settings, "", result);
  return result;
}

Settings settings_of_experiment(const Json& plan) {
  Settings result;
  if (!plan.is_object() || !plan.contains("experiment")) return result;
  for (const auto& [key, value] : settings_of_plan({{"experiment", plan["experiment"]}})) {
    if (key.starts_with(kExperiment)) result[key.substr(kExperiment.size())] = value;
  }
  return result;
}

std::vector<SettingDifference> differences_of(std::span<const Settings> runs) {
  std::set<std::string> keys;
  for (const Settings& run : runs) {
    for (const auto& [key, value] : run) keys.insert(key);
  }
  std::vector<SettingDifference> result;
  for (const std::string& key : keys) {
    SettingDifference difference{key, {}};
    for (const Settings& run : runs) {
      const auto found = run.find(key);
      difference.values.push_back(found == run.end() ? "-" : found->second);
    }
    const std::string& first = difference.values.front();
    const auto same = [&](const std::string& value) { return value == first; };
    if (!std::all_of(difference.values.begin(), difference.values.end(), same)) result.push_back(std::move(difference));
  }
  std::stable_partition(result.begin(), result.end(), [](const SettingDifference& difference) {
    return difference.key.find(".rules.") == std::string::npos;
  });
  return result;
}

std::string shortened_setting(const std::string& text) {
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not within a character
  return text.substr(0, end) + "…";
}

}  // namespace dtrain::analysis
