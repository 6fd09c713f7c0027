#include "live/feeds.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "measure/roofline.h"
#include "measure/rows.h"
#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

// The most steps that are kept; very short steps would fill ten seconds with more than are needed.
constexpr std::size_t kMostRecent = 20'000;

std::int64_t end_of(const StepLine& step) {
  return plus(step.start_ns, step.wall_ns);
}

}  // namespace

void RankFeed::poll() {
  if (newer_) return;
  seen_before_ = last_batch_;
  const auto read = [&](std::string_view line) {
    if (!newer_) newer_ = reader_.read(line, *this) == LineKind::kNewerSchema;
  };
  tail_.poll(read, [&] { forget_steps(); });
  forget_old();
}

// A rank that connects again, in a later attempt, starts with an empty profile.
void RankFeed::header(const Json& json) {
  profile_.header = json.is_object() ? json : Json::object();
  profile_.host = text(profile_.header, "host");
  profile_.agent = text(profile_.header, "agent");
  profile_.end.reset();
  profile_.parts.clear();
  profile_.memory.clear();
  incomplete_ = false;
  forget_steps();
  last_end_ns_ = first_batch_ = last_batch_ = last_epoch_ = seen_before_ = 0;
}

void RankFeed::step(const StepLine& line) {
  if (line.start_ns < last_end_ns_) return;  // an outlier that was read before its window was replaced
  profile_.steps.push_back(line);
  if (first_batch_ == 0) first_batch_ = line.batch;
  last_end_ns_ = end_of(line);
  last_batch_ = line.batch;
  last_epoch_ = line.epoch;
  if (profile_.steps.size() >= 2 * kMostRecent) forget_old();
}

// A window's line follows those of its outliers; together they give the durations of its steps. If its steps were read
// before the window replaced them, they are enough.
void RankFeed::window(const WindowLine& line, const WindowSketches& sketches) {
  if (first_batch_ == 0) first_batch_ = line.first_batch;
  if (line.first_batch > seen_before_) {
    profile_.windows.push_back(line);
    window_walls_.push_back(sketches.wall);
  } else {
    std::erase_if(profile_.steps,
                  [&](const StepLine& step) { return step.batch > seen_before_ && step.batch <= line.last_batch; });
  }
  last_end_ns_ = std::max(last_end_ns_, line.end_ns);
  last_batch_ = std::max(last_batch_, line.last_batch);
  last_epoch_ = std::max(last_epoch_, line.epoch);
}

void RankFeed::forget_steps() {
  profile_.steps.clear();
  profile_.windows.clear();
  window_walls_.clear();
}

void RankFeed::forget_old() {
  const std::int64_t since = minus(last_end_ns_, kRecentNs);
  auto& windows = profile_.windows;
  const auto first_window = std::ranges::find_if(windows, [&](const WindowLine& line) { return line.end_ns >= since; });
  window_walls_.erase(window_walls_.begin(), window_walls_.begin() + (first_window - windows.begin()));
  windows.erase(windows.begin(), first_window);

  auto& steps = profile_.steps;
  std::int64_t folded = 0;
  for (const WindowLine& line : windows) add_to(folded, line.steps);
  const auto held = std::ssize(steps);
  const auto fewest = std::clamp<std::int64_t>(minus(std::int64_t{kFewestRecent}, folded), 0, held);
  auto first = std::find_if(steps.begin(), steps.end(), [&](const StepLine& step) { return end_of(step) >= since; });
  first = std::min(first, steps.end() - fewest);
  first = std::max(first, steps.end() - std::min<std::ptrdiff_t>(held, kMostRecent));
  steps.erase(steps.begin(), first);
}

namespace {

using profile::Phase;

// A rank counts as being within a step as long as no recent step took much longer.
constexpr std::int64_t kLatestStepNs = 1'000'000'000;

Activity activity_of(Phase phase) {
  constexpr std::pair<Phase, Activity> kActivities[] = {
      {Phase::kDataloaderNext, Activity::kLoading},    {Phase::kToDevice, Activity::kLoading},
      {Phase::kTrainBatch, Activity::kComputing},      {Phase::kForward, Activity::kComputing},
      {Phase::kBackward, Activity::kComputing},        {Phase::kGraph, Activity::kComputing},
      {Phase::kAllreduceWait, Activity::kWaiting},     {Phase::kOptimizerStep, Activity::kOptimizer},
      {Phase::kStepLrSchedulers, Activity::kOptimizer}};
  for (const auto& [known, activity] : kActivities) {
    if (known == phase) return activity;
  }
  return Activity::kOther;
}

// Sums over steps and windows.
struct Sums {
  profile::PhaseTimes phases{};  // exclusive
  std::int64_t wall_ns = 0, samples = 0, steps = 0;
  std::int64_t first_batch = INT64_MAX, last_batch = 0;
  std::int64_t begin_ns = INT64_MAX, end_ns = 0;
  std::int64_t longest_ns = 0;

  template <typename Line>
  void add(const Line& line, std::int64_t count, std::int64_t first, std::int64_t last, std::int64_t end,
           std::int64_t longest) {
    for (std::size_t i = 0; i < phases.size(); ++i) add_to(phases[i], line.phases[i]);
    add_to(wall_ns, line.wall_ns);
    add_to(samples, line.samples);
    add_to(steps, count);
    first_batch = std::min(first_batch, first);
    last_batch = std::max(last_batch, last);
    begin_ns = std::min(begin_ns, line.start_ns);
    end_ns = std::max(end_ns, end);
    longest_ns = std::max(longest_ns, longest);
  }
};

void add_shares(const Sums& sums, double exchange, RecentSteps& recent) {
  if (sums.wall_ns <= 0) return;
  const auto wall = static_cast<double>(sums.wall_ns);
  const auto share = [&](Activity activity) -> double& { return recent.shares[static_cast<std::size_t>(activity)]; };
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    recent.phases[i] = static_cast<double>(sums.phases[i]) / wall;
    share(activity_of(static_cast<Phase>(i))) += recent.phases[i];
  }
  for (const Phase part : {Phase::kForward, Phase::kBackward}) {
    recent.phases[static_cast<std::size_t>(Phase::kTrainBatch)] += recent.phases[static_cast<std::size_t>(part)];
  }
  share(Activity::kExchange) = exchange * share(Activity::kWaiting);
  share(Activity::kWaiting) -= share(Activity::kExchange);
}

}  // namespace

RecentWaits recent_waits(const std::vector<const RankFeed*>& ranks) {
  RunProfile run;
  for (const RankFeed* rank : ranks) {
    RankProfile& copy = run.ranks.emplace_back();
    copy.rank = rank->profile().rank;
    copy.steps = rank->profile().steps;
    copy.windows = rank->profile().windows;
  }
  const Rows rows(run);
  const WaitSummary summary = compare_waits(rows);
  RecentWaits result;
  result.compared_steps = summary.compared_steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    double waited_s = 0;
    for (std::size_t i = 0; i < rows.rows().size(); ++i) {
      if (rows.rows()[i].exchanged) waited_s += to_seconds(wait_of(rows.at(i, r)));
    }
    RecentWaits::Rank& rank = result.ranks[run.ranks[r].rank];
    rank.came_last = summary.ranks[r].steps;
    if (waited_s > 0 && ranks.size() > 1) rank.exchange = std::min(1.0, summary.exchange_seconds / waited_s);
  }
  return result;
}

std::optional<RecentSteps> recent_steps(const RankFeed& rank, const RecentWaits& waits, std::int64_t now_ns) {
  const RankProfile& profile = rank.profile();
  Sums sums;
  Distribution walls;
  for (const StepLine& step : profile.steps) {
    sums.add(step, 1, step.batch, step.batch, plus(step.start_ns, step.wall_ns), step.wall_ns);
    walls.add(step.wall_ns);
  }
  for (std::size_t i = 0; i < profile.windows.size(); ++i) {
    const WindowLine& window = profile.windows[i];
    sums.add(window, window.steps, window.first_batch, window.last_batch, window.end_ns, window.wall_max_ns);
    walls.add(rank.window_walls()[i]);
  }
  if (sums.steps <= 0) return std::nullopt;
  RecentSteps recent;
  recent.steps = sums.steps;
  recent.p50_s = walls.quantile_s(0.5);
  recent.p99_s = walls.quantile_s(0.99);
  // Some lines may have been replaced before they were read, so steps are counted by their numbers.
  const bool late = minus(now_ns, sums.end_ns) > std::max(kLatestStepNs, 2 * sums.longest_ns);
  const double span_s = to_seconds(minus(late ? now_ns : sums.end_ns, sums.begin_ns));
  if (span_s > 0) {
    recent.batches_per_s = static_cast<double>(sums.last_batch - sums.first_batch + 1) / span_s;
    recent.samples_per_s = recent.batches_per_s * static_cast<double>(sums.samples) / static_cast<double>(sums.steps);
  }
  const auto waited = waits.ranks.find(profile.rank);
  add_shares(sums, waited == waits.ranks.end() ? 1 : waited->second.exchange, recent);
  if (waited != waits.ranks.end()) recent.came_last = waited->second.came_last;
  return recent;
}

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
  using profile::RecordFile;
  const auto each = [this](FileTail& tail, RecordFile file, void (RunEvents::*add)(const Json&)) {
    tail.poll([&](std::string_view line) {
      if (const auto json = profile::parse_record(file, line, tail.place(), line_damage_)) (this->*add)(*json);
    });
  };
  each(events_, RecordFile::kEvents, &RunEvents::add_event);
  each(metrics_, RecordFile::kMetrics, &RunEvents::add_metrics);
}

profile::Damage RunEvents::damage() const {
  profile::Damage all = plan_damage_;
  for (const FileTail* tail : {&events_, &metrics_}) {
    if (!tail->problem().empty()) all.add(tail->problem());
  }
  all.add(line_damage_);
  return all;
}

void RunEvents::read_plan() {
  std::error_code error;
  const auto time = fs::last_write_time(folder_ / "plan.json", error);
  if (error || time == plan_time_) return;
  plan_damage_ = {};
  plan_ = profile::read_plan(folder_, plan_damage_);
  if (!plan_.empty()) plan_time_ = time;  // otherwise it is read again at the next poll
}

void RunEvents::add_event(const Json& event) {
  const std::string what = text(event, "event");
  constexpr std::string_view kOfAttempts[] = {"attempt_started", "attempt_failed", "attempt_stopped", "recovered",
                                              "run_ended",       "resumed",        "interrupted"};
  const bool of_attempt = std::ranges::find(kOfAttempts, what) != std::end(kOfAttempts);
  if (of_attempt || (what == "rank_running" && integer(event, "rank") == 0)) attempt_events_.push_back(event);
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
  const RunHistory history = history_of(attempt_events_);
  view.attempts = std::ssize(history.attempts);
  for (const AttemptAccount& attempt : history.attempts) {
    view.recoveries += attempt.recovery ? 1 : 0;
    view.batches_again += attempt.recovery ? attempt.recovery->batches_again : 0;
  }
  view.useful_time = history.useful_time(ended_ ? std::nullopt : std::optional(now_s));
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
  if (std::ssize(view.ranks) != view.world_size) return;
  const LimitsOfRanks of_ranks(plan_, text(counted, "device"));
  double limit = 0;
  for (const LiveRank& rank : view.ranks) {
    const auto limits = of_ranks.of(rank.rank, rank.host);
    if (!limits) return;
    const auto rate = limits->gflops.find(text(counted, "dtype"));
    if (rate == limits->gflops.end()) return;
    limit += rate->second;
  }
  if (limit > 0) view.mfu = *view.achieved_gflops / limit;
}

std::optional<double> RunEvents::written() const {
  std::optional<double> latest = events_.written();
  if (metrics_.written()) latest = std::max(latest.value_or(0), *metrics_.written());
  return latest;
}

}  // namespace dtrain::analysis
