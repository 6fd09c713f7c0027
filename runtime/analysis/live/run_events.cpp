#include "live/run_events.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/json_number.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "measure/roofline.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

namespace fs = std::filesystem;

namespace {

// Returns the batch of the newest checkpoint that is being written; a checkpoint has another name until it is durable.
std::optional<std::int64_t> batch_being_saved(const fs::path& run_dir) {
  constexpr std::string_view kPrefix = ".partial-step-";
  std::optional<std::int64_t> newest;
  std::error_code error;
  fs::path storage;
  try {
    storage = checkpoints::storage_of_run(run_dir);
  } catch (const Error&) {  // a damaged file: nothing is known
    return std::nullopt;
  }
  for (const auto& entry : fs::directory_iterator(storage, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    const std::int64_t step = std::atoll(name.c_str() + kPrefix.size());
    if (step > newest.value_or(0)) newest = step;
  }
  return newest;
}

}  // namespace

void RunEvents::poll() {
  read_plan();
  const auto each = [this](void (RunEvents::*add)(const Json&)) {
    return [this, add](std::string_view line) {
      const Json json = Json::parse(line, nullptr, false);
      if (json.is_object()) (this->*add)(json);
    };
  };
  events_.poll(each(&RunEvents::add_event));
  metrics_.poll(each(&RunEvents::add_metrics));
}

void RunEvents::read_plan() {
  std::error_code error;
  const auto time = fs::last_write_time(folder_ / "plan.json", error);
  if (error || time == plan_time_) return;
  try {
    plan_ = read_json(folder_ / "plan.json");
    plan_time_ = time;
  } catch (const Error&) {
    return;  // read again at the next poll
  }
  if (!plan_.is_object()) plan_ = Json::object();
}

void RunEvents::add_event(const Json& event) {
  const std::string what = text(event, "event");
  if (what == "submitted" || what == "queued" || what == "job_submitted") {
    state_ = "queued";
    ended_ = false;  // an ended run continues
    if (what == "queued") cause_ = text(event, "reason");
  } else if (what == "run_started" || what == "rank_started" || what == "attempt_started") {
    if (what != "rank_started" || started_s_ == 0) cause_.clear();
    state_ = "starting";
    ended_ = false;
    if (started_s_ == 0) started_s_ = seconds_of_utc(text(event, "time"));
  } else if (what == "checkpoint_saved" || what == "checkpoint_failed" || what == "checkpoint_delayed") {
    const RunHistory history = history_of(std::span(&event, 1));
    if (!history.checkpoints.empty()) checkpoint_ = history.checkpoints.back();
    save_trouble_ = history.troubles.empty() ? std::string() : text_of(history.troubles.back());
  } else if (what == "attempt_failed") {
    cause_ = text(event, "cause");
  } else if (what == "run_ended") {
    state_ = text(event, "state");
    cause_ = text(event, "cause");
    ended_ = true;
    ended_s_ = seconds_of_utc(text(event, "time"));
  }
}

void RunEvents::add_metrics(const Json& line) {
  const std::string kind = text(line, "kind");
  const auto metrics = line.find("metrics");
  if ((kind != "training" && kind != "validation") || metrics == line.end() || !metrics->is_object()) return;
  curves_.add(line);
  LiveMetrics& latest = kind == "training" ? training_ : validation_;
  latest.batch = integer(line, "batch");
  latest.values.clear();
  for (const auto& [name, value] : metrics->items()) {
    if (const auto number = number_of(value)) latest.values[name] = *number;
  }
}

void RunEvents::fill(double now_s, LiveView& view) const {
  view.name = text(plan_, "name");
  if (view.name.empty()) view.name = folder_.filename().string();
  view.world_size = static_cast<int>(std::clamp<std::int64_t>(integer(plan_, "world_size"), 0, kLargestWorld));
  const Json& length = object_at(plan_, "length");
  if (const auto batches = integer(length, "batches"); batches > 0) view.total_batches = batches;
  if (const auto batches = integer(length, "batches_per_epoch"); batches > 0) view.batches_per_epoch = batches;
  view.state = state_.empty() ? "starting" : state_;
  view.cause = cause_;
  view.ended = ended_;
  if (started_s_ > 0) view.elapsed_s = std::max(0.0, (ended_ && ended_s_ > 0 ? ended_s_ : now_s) - started_s_);
  if (checkpoint_) {
    view.checkpoint.step = checkpoint_->step;
    view.checkpoint.age_s = std::max(0.0, now_s - checkpoint_->time_s);
    view.checkpoint.bytes = static_cast<double>(checkpoint_->bytes);
  }
  if (!ended_) view.checkpoint.saving = batch_being_saved(folder_);
  view.checkpoint.trouble = save_trouble_;
  view.training = training_;
  view.validation = validation_;
  view.curves = learning_curves();
}

// Returns the training loss and the searcher.metric of validations; without a searcher.metric, their loss.
std::vector<LiveCurve> RunEvents::learning_curves() const {
  const std::string metric = text(object_at(object_at(plan_, "experiment"), "searcher"), "metric");
  const RunCurves all = curves_.curves();
  std::vector<LiveCurve> curves;
  for (const auto& [kind, name] : {std::pair(CurveKind::kTraining, std::string("loss")),
                                   std::pair(CurveKind::kValidation, metric.empty() ? std::string("loss") : metric)}) {
    if (const Curve* curve = all.find(kind, name)) curves.push_back({kind, name, curve->points});
  }
  return curves;
}

void RunEvents::add_computing(LiveView& view) const {
  const Json& counted = object_at(plan_, "flops");
  const double flops = number(counted, "per_sample");
  if (flops <= 0 || view.samples_per_s <= 0) return;
  view.achieved_gflops = flops * view.samples_per_s / 1e9;
  if (text(counted, "device") != "cpu" || std::ssize(view.ranks) != view.world_size) return;
  const auto hosts = profile::limits_of_plan(plan_);
  double limit = 0;
  for (const LiveRank& rank : view.ranks) {
    const profile::RankLimits* const limits = limits_of(hosts, rank.host);
    const auto rate = limits ? gflops_of(*limits, text(counted, "dtype")) : std::nullopt;
    if (!rate) return;
    limit += *rate;
  }
  if (limit > 0) view.mfu = *view.achieved_gflops / limit;
}

std::optional<double> RunEvents::written() const {
  std::optional<double> latest = events_.written();
  if (metrics_.written()) latest = std::max(latest.value_or(0), *metrics_.written());
  return latest;
}

}  // namespace dtrain::analysis
