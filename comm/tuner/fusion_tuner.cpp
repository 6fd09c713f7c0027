#include <algorithm>
#include <cmath>

#include "dtrain/base/clock.h"
#include "dtrain/base/numeric.h"
#include "dtrain/comm/fusion_tuner.h"
#include "tuner/sign_test.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kTiny = 4, kSmall = 4 << 10, kMiddle = 256 << 10, kLarge = 4 << 20;  // bytes
constexpr int kShortRepeats = 7, kLongRepeats = 3;  // without the first exchange, which warms up
static_assert(2 * (kShortRepeats + 1) + 2 * (kLongRepeats + 1) + 1 <= kMostLinkOperations);
constexpr double kPatienceUs = 100'000;  // for one more exchange
// Largest ratios between two measurements of one link whose hosts also have other work.
constexpr double kSpeedNoise = 2, kLatencyNoise = 4;
constexpr double kNoticeableLatencyUs = 250;

constexpr int kWarmUpSteps = 3;  // allocators and caches settle
constexpr int kReadySteps = 5;
constexpr std::size_t kCandidates = 5;  // beside the default
constexpr double kLeastLatencyUs = 25;  // of an exchange that shares its core with backward
constexpr int kComparedRounds = 6;      // turns of every plan
constexpr int kFinalPairs = 20;
constexpr double kWorthwhile = 0.01;  // of the time from the start of backward until all is exchanged
constexpr double kChance = 0.02;      // probability of a winner by luck

// Four stages end with steps that do not count, while the last times arrive.
static_assert(kWarmUpSteps + kReadySteps + static_cast<int>(kCandidates + 1) * kComparedRounds + 2 * kFinalPairs +
                  4 * FusionTuner::kMostLag <=
              FusionTuner::kMaxSteps);

// Returns rank 0's list. Collective.
std::vector<std::size_t> from_rank_0(Communicator& communicator, const std::vector<std::size_t>& list) {
  auto count = static_cast<std::int64_t>(list.size());
  communicator.broadcast(&count, 1, DataType::kInt64, 0).wait();
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  if (communicator.rank() == 0) std::copy(list.begin(), list.end(), numbers.begin());
  communicator.broadcast(numbers.data(), numbers.size(), DataType::kInt64, 0).wait();
  return {numbers.begin(), numbers.end()};
}

std::size_t flag_from_rank_0(Communicator& communicator, std::size_t value) {
  return from_rank_0(communicator, {value}).front();
}

}  // namespace

std::vector<double> max_over_ranks(Communicator& communicator, std::span<const double> values) {
  std::vector<double> result(values.begin(), values.end());
  communicator.all_reduce(result.data(), result.size(), DataType::kFloat64, {.op = ReduceOp::kMax}).wait();
  return result;
}

bool alike(const LinkModel& a, const LinkModel& b) {
  const auto within = [](double x, double y, double factor) { return std::max(x, y) <= factor * std::min(x, y); };
  return within(a.us_per_byte, b.us_per_byte, kSpeedNoise) &&
         within(std::max(a.latency_us, kNoticeableLatencyUs), std::max(b.latency_us, kNoticeableLatencyUs),
                kLatencyNoise);
}

// The cost of an exchange is modelled as a line through the times of a few sizes.
LinkModel measure_link(Communicator& communicator, Communicator& host) {
  const SystemClock clock;
  const auto buffer = communicator.allocate(kLarge);
  const auto time_of = [&](std::size_t bytes, int repeats) {
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
      host.barrier().wait();
      const Nanoseconds began = clock.monotonic();
      communicator.all_reduce(buffer->bytes().data(), bytes / sizeof(float), DataType::kFloat32).wait();
      if (i > 0) times.push_back(static_cast<double>((clock.monotonic() - began).count()) / 1e3);
    }
    // The time of an exchange is that of the rank that began it first: the maximum over ranks. Other work of the hosts
    // only makes exchanges longer, so the shortest exchange counts.
    const auto exchanges = max_over_ranks(host, times);
    return *std::min_element(exchanges.begin(), exchanges.end());
  };
  const double tiny = time_of(kTiny, kShortRepeats);
  const double small = time_of(kSmall, kShortRepeats);
  std::size_t bytes = kMiddle;
  double large = time_of(bytes, kLongRepeats);
  if (large * (static_cast<double>(kLarge) / kMiddle) < kPatienceUs) {
    bytes = kLarge;
    large = time_of(bytes, kLongRepeats);
  }
  LinkModel link;
  link.us_per_byte = std::max(0.0, large - small) / static_cast<double>(bytes - kSmall);
  // A link may send its first kilobytes faster than the rest (buffers, token buckets); the line then misses the cost of
  // the start.
  link.latency_us = std::max(tiny, small - static_cast<double>(kSmall) * link.us_per_byte);
  return link;
}

FusionTuner::FusionTuner(std::vector<FusionItem> items, const FusionRule& rule, Communicator& gradients,
                         Communicator& host, const Logger& log, const std::optional<std::vector<std::size_t>>& known)
    : items_(std::move(items)), rule_(rule), host_(host), log_(log), ready_samples_(items_.size()) {
  plans_.push_back(plan_fusion(items_, rule_.threshold_bytes));
  cuts_.push_back(cuts_of(plans_[0]));
  if (known) {
    from_cache_ = true;
    stage_ = Stage::kDone;
    cuts_.push_back(*known);
    plans_.push_back(plan_with_cuts(items_, *known));
    current_ = 1;
    log_->info("tensor fusion: the plan that an earlier run found (buckets: {})", plan().buckets.size());
    return;
  }
  link_ = measure_link(gradients, host_);
  log_->info("tensor fusion is being tuned: an exchange takes {:.0f} us and {:.2f} ms a MB here", link_.latency_us,
             link_.us_per_byte * (1 << 20) / 1e3);
}

void FusionTuner::begin(Stage stage) {
  stage_ = stage;
  ++stage_number_;
  begun_ = arrived_ = 0;
  times_.assign(plans_.size(), {});
  if (stage == Stage::kComparing || stage == Stage::kFinal) current_ = plan_of_step(0);
}

int FusionTuner::steps_of_stage() const {
  switch (stage_) {
    case Stage::kWarmUp:
      return kWarmUpSteps;
    case Stage::kReadyTimes:
      return kReadySteps;
    case Stage::kComparing:
      return kComparedRounds * static_cast<int>(plans_.size());
    case Stage::kFinal:
      return 2 * kFinalPairs;
    case Stage::kDone:
      break;
  }
  return 0;
}

std::size_t FusionTuner::plan_of_step(int step) const {
  if (stage_ == Stage::kComparing) return static_cast<std::size_t>(step) % plans_.size();
  // The order is default, challenger, challenger, default, …, so a drift affects both alike.
  if (stage_ == Stage::kFinal) return (step / 2 + step) % 2 ? challenger_ : 0;
  return current_;
}

void FusionTuner::end_step() {
  if (done()) return;
  ++all_steps_;
  const bool counts = begun_ < steps_of_stage();
  waiting_.push_back({counts ? stage_number_ : -1, current_});
  if (!counts) return;
  ++begun_;
  current_ = plan_of_step(begun_);
}

void FusionTuner::add_times(std::span<const double> ready_us, const ExchangeTimes& times) {
  if (done()) return;
  const Step step = waiting_.front();
  waiting_.pop_front();
  if (step.stage != stage_number_) return;
  if (stage_ == Stage::kReadyTimes) {
    for (std::size_t i = 0; i < items_.size(); ++i) ready_samples_[i].push_back(ready_us[i]);
  } else if (stage_ != Stage::kWarmUp) {
    times_[step.plan].push_back(times);
  }
  if (++arrived_ < steps_of_stage()) return;
  if (stage_ == Stage::kWarmUp) return begin(Stage::kReadyTimes);
  if (stage_ == Stage::kReadyTimes) return choose_candidates();
  stage_ == Stage::kComparing ? end_comparing() : end_final();
}

void FusionTuner::choose_candidates() {
  std::vector<double> medians;
  for (const auto& samples : ready_samples_) medians.push_back(std::max(0.0, median_midpoint(samples)));
  ready_us_ = max_over_ranks(host_, medians);
  FusionPlan with_gaps = plan_fusion(items_, rule_.threshold_bytes, ready_us_, rule_.cycle_us);
  cuts_[0] = cuts_of(with_gaps);
  plans_[0] = std::move(with_gaps);
  // Rank 0 proposes the plans that are best if an exchange costs its measured time, and if it costs more, because
  // beside backward its start and its end take time from backward. It adds a few even divisions in case the model is
  // wrong.
  std::vector<FusionPlan> proposals;
  for (const double factor : {1.0, 4.0, 16.0, 64.0}) {
    const LinkModel link{std::max(link_.latency_us, kLeastLatencyUs) * factor, link_.us_per_byte};
    proposals.push_back(plan_with_cuts(items_, best_cuts(items_, ready_us_, link)));
  }
  std::int64_t bytes = 0;
  for (const FusionItem& item : items_) bytes += item.bytes();
  for (const std::int64_t parts : {4, 8, 2, 16, 1}) {
    proposals.push_back(plan_fusion(items_, (bytes + parts - 1) / parts));
  }
  std::vector<FusionPlan> chosen;
  for (const FusionPlan& plan : proposals) {
    const bool known = plan == plans_[0] || std::find(chosen.begin(), chosen.end(), plan) != chosen.end();
    if (!known && chosen.size() < kCandidates) chosen.push_back(plan);
  }
  const std::size_t count = flag_from_rank_0(host_, chosen.size());
  chosen.resize(count);
  for (const FusionPlan& plan : chosen) {
    cuts_.push_back(from_rank_0(host_, cuts_of(plan)));
    plans_.push_back(plan_with_cuts(items_, cuts_.back()));
  }
  begin(count == 0 ? Stage::kDone : Stage::kComparing);
  if (count == 0) log_->info("tensor fusion: the default plan is the only one worth trying here");
}

std::vector<FusionTuner::Shared> FusionTuner::share_times() {
  std::vector<Shared> shared;
  for (const auto& mine : times_) {
    Shared& all = shared.emplace_back();
    for (const ExchangeTimes& step : mine) {
      all.exchanged_us.push_back(step.exchanged_us);
      all.exposed_us.push_back(step.exposed_us);
    }
    // A step is as slow as its slowest rank. Exposed communication is averaged instead: the others wait for that rank
    // under every plan.
    all.exchanged_us = max_over_ranks(host_, all.exchanged_us);
    host_.all_reduce(all.exposed_us.data(), all.exposed_us.size(), DataType::kFloat64, {.op = ReduceOp::kMean}).wait();
  }
  return shared;
}

void FusionTuner::end_comparing() {
  const auto times = share_times();
  std::size_t best = 1;
  for (std::size_t i = 2; i < plans_.size(); ++i) {
    if (median_midpoint(times[i].exchanged_us) < median_midpoint(times[best].exchanged_us)) best = i;
  }
  challenger_ = flag_from_rank_0(host_, best);
  begin(Stage::kFinal);
}

void FusionTuner::end_final() {
  const auto times = share_times();
  const auto medians = [](const Shared& shared) {
    return ExchangeTimes{median_midpoint(shared.exchanged_us), median_midpoint(shared.exposed_us)};
  };
  const auto& defaults = times[0].exchanged_us;
  const auto& challenger = times[challenger_].exchanged_us;
  pairs_ = static_cast<int>(std::min(defaults.size(), challenger.size()));
  wins_ = 0;
  for (int i = 0; i < pairs_; ++i)
    wins_ += challenger[static_cast<std::size_t>(i)] < defaults[static_cast<std::size_t>(i)];
  default_ = medians(times[0]);
  challenging_ = medians(times[challenger_]);
  const bool better = challenging_.exchanged_us < default_.exchanged_us * (1 - kWorthwhile) &&
                      challenging_.exposed_us <= default_.exposed_us && chance_of_wins(wins_, pairs_) <= kChance;
  current_ = flag_from_rank_0(host_, better ? challenger_ : 0);
  stage_ = Stage::kDone;
  log_choice();
}

void FusionTuner::log_choice() const {
  const double gained_ms = (default_.exchanged_us - challenging_.exchanged_us) / 1e3;
  const double before_ms = default_.exposed_us / 1e3, after_ms = challenging_.exposed_us / 1e3;
  if (current_ != 0) {
    log_->info(
        "tensor fusion: {} buckets instead of {}: {:.2f} ms a step gained ({:.1f}% of backward and exchange; faster in "
        "{} of {} pairs of steps), {:.2f} ms of communication exposed instead of {:.2f}",
        plan().buckets.size(), plans_[0].buckets.size(), gained_ms, 1e5 * gained_ms / default_.exchanged_us, wins_,
        pairs_, after_ms, before_ms);
    return;
  }
  const char* how = "faster, too little to be sure";
  if (after_ms > before_ms) how = "faster, but exposed more communication";
  if (gained_ms < 0) how = "slower";
  log_->info("tensor fusion: the default plan stays (buckets: {}); the best other one ({}) was {:.2f} ms a step {}",
             plans_[0].buckets.size(), plans_[challenger_].buckets.size(), std::abs(gained_ms), how);
}

Json FusionTuner::report() const {
  Json json{{"buckets", plan().buckets.size()}, {"default_buckets", plans_[0].buckets.size()}};
  if (from_cache_) {
    json["from"] = "an earlier run";
    return json;
  }
  json["steps"] = all_steps_;
  json["plans_tried"] = plans_.size();
  json["link"] = Json{{"latency_us", link_.latency_us}, {"ms_per_mb", link_.us_per_byte * (1 << 20) / 1e3}};
  if (pairs_ > 0) {
    const ExchangeTimes& chosen = current_ == 0 ? default_ : challenging_;
    json["default_ms"] = default_.exchanged_us / 1e3;
    json["chosen_ms"] = chosen.exchanged_us / 1e3;
    json["default_exposed_ms"] = default_.exposed_us / 1e3;
    json["chosen_exposed_ms"] = chosen.exposed_us / 1e3;
    json["wins"] = wins_;
    json["pairs"] = pairs_;
  }
  return json;
}

}  // namespace dtrain::comm
