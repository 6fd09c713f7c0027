#include "dtrain/analysis/run_line.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json_number.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

namespace fs = std::filesystem;

namespace {

Json plan_of(const fs::path& run_dir) {
  std::error_code code;
  if (!fs::exists(run_dir / "plan.json", code)) return Json::object();
  try {
    Json plan = read_json(run_dir / "plan.json");
    return plan.is_object() ? plan : Json::object();
  } catch (const Error&) {  // damaged, or written just now
    return Json::object();
  }
}

void add_events(const fs::path& run_dir, std::optional<double> now_s, RunLine& run) {
  std::vector<Json> events;
  std::ifstream file(run_dir / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    Json event = Json::parse(line, nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
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
  const auto searcher = experiment.find("searcher");
  if (searcher != experiment.end() && searcher->is_object()) {
    run.metric = text(*searcher, "metric");
    run.smaller_is_better = searcher->value("smaller_is_better", Json()) != Json(false);
  }
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

template <typename Value>
Json value_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

ListedRun read_listed_run(const fs::path& run_dir, std::optional<double> now_s) {
  ListedRun listed{{}, read_curves(run_dir)};
  RunLine& run = listed.line;
  const RunCurves& curves = listed.curves;
  run.folder = run_dir;
  const Json plan = plan_of(run_dir);
  run.name = text(plan, "name");
  run.settings = settings_of_experiment(plan);
  add_events(run_dir, now_s, run);
  run.batches = curves.batches;
  run.samples_per_s = curves.samples_per_s;
  if (const Curve* loss = curves.find(CurveKind::kTraining, "loss")) run.loss = loss->last();
  const auto experiment = plan.find("experiment");
  add_metric(experiment != plan.end() && experiment->is_object() ? *experiment : Json::object(), curves, run);
  return listed;
}

Json to_json(const RunLine& run) {
  return {{"folder", run.folder.string()},
          {"name", run.name},
          {"state", run.state.empty() ? Json() : Json(run.state)},
          {"attempts", run.attempts},
          {"started_s", value_or_null(run.started_s)},
          {"duration_s", value_or_null(run.duration_s)},
          {"batches", run.batches},
          {"samples_per_s", value_or_null(run.samples_per_s)},
          {"loss", to_json(run.loss)},
          {"metric", run.metric.empty() ? Json() : Json(run.metric)},
          {"smaller_is_better", run.smaller_is_better},
          {"last_metric", to_json(run.last_metric)},
          {"best_metric", to_json(run.best_metric)}};
}

}  // namespace dtrain::analysis
