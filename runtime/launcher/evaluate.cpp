#include "dtrain/launcher/evaluate.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/config/experiment.h"
#include "dtrain/profile/run_records.h"
#include "dtrain/rank/run_folder.h"
#include "short_runs.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRun = "run";

fs::path make_scratch(const fs::path& wanted) {
  const auto made = [](const fs::path& folder) {
    std::string name = (folder / "evaluate-XXXXXX").string();
    return ::mkdtemp(name.data()) ? fs::path(name) : fs::path();
  };
  if (!wanted.empty()) {
    if (fs::path folder = made(wanted); !folder.empty()) return folder;  // else it is another user's, or read-only
  }
  const fs::path temporary = fs::temp_directory_path();
  fs::path folder = made(temporary);
  if (folder.empty()) throw SystemError("cannot make a folder in " + temporary.string(), errno);
  return folder;
}

// Returns the samples of a batch of the prediction, which must not depend on the number of ranks that compute it.
std::int64_t prediction_batch(const EvaluateRequest& request) {
  if (request.batch_size) return *request.batch_size;
  const config::Experiment experiment =
      config::read_experiment(request.experiment_file, request.overrides, request.contents);
  return std::max<std::int64_t>(1, experiment.global_batch_size / std::max(1, experiment.resources.slots_per_trial));
}

std::vector<std::string> launch_command(const EvaluateRequest& request) {
  std::vector<std::string> command{executable_path().string(), "launch", request.experiment_file.string(), "--trial"};
  const auto add = [&](auto... words) { (command.emplace_back(words), ...); };
  if (request.predictions.empty()) {
    add("--evaluate");
  } else {
    add("--predict", fs::absolute(request.predictions).string());
    add("--batch-size", std::to_string(prediction_batch(request)));
  }
  if (!request.contents.empty()) add("--contents", request.contents.string());
  if (!request.cluster.empty()) add("--cluster", request.cluster.string());
  for (const std::string& value : request.overrides) {
    if (!value.starts_with("initial_weights")) add("--set", value);
  }
  if (request.slots) {
    add("--set", "resources.slots_per_trial=" + std::to_string(*request.slots), "--set", "resources.elastic=null");
  }
  Json weights = {{"file", fs::absolute(request.weights).string()}};
  if (request.is_checkpoint) weights["training_state"] = true;
  add("--set", "initial_weights=" + to_line(weights));
  add("--set", "profiling.trace=null");
  return command;
}

Evaluation read_evaluation(const fs::path& run, const EvaluateRequest& request) {
  Evaluation result{.weights = request.weights};
  const bool predicts = !request.predictions.empty();
  std::optional<Json> told;
  for (const std::string& line : split(read_file(rank::RunFolder{run}.metrics()), '\n')) {
    const auto parsed = parse_if_valid(line);
    if (parsed && text_at(*parsed, "kind") == (predicts ? "prediction" : "validation")) told = *parsed;
  }
  if (!told) throw Error("the ranks have ended without a result", "see the logs in " + run.string());
  if (predicts) {
    result.file = request.predictions;
    result.shape = told->value("shape", Json::array());
    result.samples = result.shape.empty() ? 0 : result.shape.front().get<std::int64_t>();
  } else {
    result.metrics = object_at(*told, "metrics");
    result.samples = value_at<std::int64_t>(*told, "samples").value_or(0);
  }
  if (request.is_checkpoint) {
    result.batch = value_at<std::int64_t>(*told, "batch");
    result.epoch = value_at<std::int64_t>(*told, "epoch");
  }
  profile::Damage damage;
  const Json plan = profile::read_plan(run, damage);
  result.ranks = value_at<int>(plan, "world_size").value_or(0);
  if (request.is_checkpoint) result.ema = value_at<double>(object_at(plan, "optimizer"), "ema");
  return result;
}

}  // namespace

std::optional<Evaluation> evaluate(const EvaluateRequest& request) {
  const fs::path scratch = make_scratch(request.scratch);
  ShortRuns launches(launch_command(request), scratch);
  const bool ended = launches.run(kRun, std::vector<std::string>());
  std::optional<Evaluation> result;
  if (ended) result = read_evaluation(scratch / kRun, request);
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  return result;
}

Json to_json(const Evaluation& evaluation) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json json = {{"weights", evaluation.weights.string()}, {"batch", or_null(evaluation.batch)},
               {"epoch", or_null(evaluation.epoch)},     {"ema", or_null(evaluation.ema)},
               {"samples", evaluation.samples},          {"ranks", evaluation.ranks}};
  if (evaluation.file.empty()) {
    json["metrics"] = evaluation.metrics;
  } else {
    json["file"] = evaluation.file.string();
    json["shape"] = evaluation.shape;
  }
  return json;
}

std::string evaluation_text(const Evaluation& evaluation) {
  std::vector<std::pair<std::string, std::string>> rows{{"weights", evaluation.weights.string()}};
  if (evaluation.ema) rows.back().second += ", averaged (optimizations.ema: " + to_line(Json(*evaluation.ema)) + ")";
  if (evaluation.batch) {
    rows.emplace_back("trained", count_of(*evaluation.batch, "batch") + ", epoch " +
                                     std::to_string(evaluation.epoch.value_or(0) + 1));
  }
  rows.emplace_back("data", count_of(evaluation.samples, "sample") + " on " + count_of(evaluation.ranks, "rank"));
  if (!evaluation.file.empty()) {
    rows.emplace_back("outputs", evaluation.file.string() + ", shape " + evaluation.shape.dump());
  }
  for (const auto& [name, value] : evaluation.metrics.items()) {
    rows.emplace_back(name, value.is_string() ? value.get<std::string>() : to_line(value));
  }
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  std::string text;
  for (const auto& [name, value] : rows) text += name + std::string(width + 2 - name.size(), ' ') + value + "\n";
  return text;
}

}  // namespace dtrain::launcher
