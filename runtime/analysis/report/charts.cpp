#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "read/json_fields.h"
#include "read/text.h"

namespace dtrain::analysis::report {
namespace {

std::int64_t first_ns(const RankProfile& rank) {
  if (const std::int64_t start = integer(rank.header, "start_ns"); start > 0) return start;
  if (!rank.parts.empty()) return rank.parts.front().start_ns;
  if (!rank.steps.empty()) return rank.steps.front().start_ns;
  return rank.windows.empty() ? 0 : rank.windows.front().start_ns;
}

std::int64_t last_ns(const RankProfile& rank) {
  std::int64_t last = rank.end ? rank.end->time_ns : 0;
  for (const PartLine& part : rank.parts) last = std::max(last, part.end_ns);
  if (!rank.steps.empty()) last = std::max(last, rank.steps.back().start_ns + rank.steps.back().wall_ns);
  if (!rank.windows.empty()) last = std::max(last, rank.windows.back().end_ns);
  return last;
}

constexpr std::size_t kFewLines = 6;  // can be distinguished

constexpr std::size_t kStepBins = 48;
constexpr double kWidest = 4;  // times from the median to p95: how far beyond p95 a histogram goes
constexpr double kNano = 1e9;
constexpr double kBeyondPlain = 1.2;  // of the 99th percentile of batches in which there is only training
constexpr double kShortPause = 0.01;  // share of a batch: a shorter validation or checkpoint does not matter

std::vector<Point> step_points(const Input& input, const RankProfile& rank) {
  std::vector<Point> points;
  points.reserve(rank.steps.size() + rank.windows.size());
  for (const StepLine& step : rank.steps) {
    points.push_back(point(input.seconds(rank, step.start_ns), static_cast<double>(step.wall_ns) / kNano));
  }
  for (const WindowLine& window : rank.windows) {
    if (window.steps <= 0) continue;
    const double mean = static_cast<double>(window.wall_ns) / static_cast<double>(window.steps) / kNano;
    const double middle = (input.seconds(rank, window.start_ns) + input.seconds(rank, window.end_ns)) / 2;
    points.push_back({middle, mean, mean, static_cast<double>(window.wall_max_ns) / kNano});
  }
  return points;
}

template <typename F>
void each_duration(const RankProfile& rank, F&& f) {
  for (const StepLine& step : rank.steps) f(static_cast<double>(step.wall_ns) / kNano, std::int64_t{1});
  const profile::Sketch& folded = rank.window_sketches.wall;
  for (const profile::Sketch::Bin& bin : folded.bins()) f(profile::Sketch::value_of(bin.index) / kNano, bin.count);
}

// Returns the indices of points above so many seconds.
Json beyond(const std::vector<Point>& points, double seconds) {
  Json result = Json::array();
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].high > seconds) result.push_back(i);
  }
  return result;
}

// Returns the 99th percentile of batches without validation and checkpoint; if there are none, of all batches.
double longest_plain_s(const Input& input) {
  constexpr auto kValidation = static_cast<std::size_t>(profile::Phase::kValidation);
  constexpr auto kCheckpoint = static_cast<std::size_t>(profile::Phase::kCheckpoint);
  std::vector<double> plain;
  for (const RankProfile& rank : input.run.ranks) {
    for (const StepLine& step : rank.steps) {
      const auto paused = static_cast<double>(step.phases[kValidation] + step.phases[kCheckpoint]);
      if (paused > kShortPause * static_cast<double>(step.wall_ns)) continue;
      plain.push_back(static_cast<double>(step.wall_ns) / kNano);
    }
  }
  return plain.empty() ? input.analysis.steps.p99_s : quantile(plain, 0.99);
}

}  // namespace

Input::Input(const RunProfile& profile, const Analysis& known) : run(profile), analysis(known) {
  bool first = true;
  for (const RankProfile& rank : run.ranks) {
    const std::int64_t begin = first_ns(rank);
    if (begin <= 0) continue;
    const std::int64_t common = run.to_common_ns(rank.rank, begin);
    zero_ns_ = first ? common : std::min(zero_ns_, common);
    first = false;
  }
  for (const RankProfile& rank : run.ranks) end_s_ = std::max(end_s_, seconds(rank, last_ns(rank)));

  std::set<int> chosen;
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (chosen.size() < kMostRanks / 2) chosen.insert(straggler.rank);
  }
  for (const RankProfile& rank : run.ranks) {
    if (run.ranks.size() > kMostRanks && chosen.size() >= kMostRanks) break;
    chosen.insert(rank.rank);
  }
  for (const RankProfile& rank : run.ranks) {
    if (chosen.contains(rank.rank)) drawn_.push_back(&rank);
  }
}

double Input::seconds(const RankProfile& rank, std::int64_t monotonic_ns) const {
  return static_cast<double>(run.to_common_ns(rank.rank, monotonic_ns) - zero_ns_) / 1e9;
}

// A host has one clock, so the offset of any of its ranks applies.
double Input::seconds(const MonitorProfile& monitor, std::int64_t monotonic_ns) const {
  for (const RankProfile& rank : run.ranks) {
    if (rank.agent == monitor.agent) return seconds(rank, monotonic_ns);
  }
  return static_cast<double>(monotonic_ns - zero_ns_) / 1e9;
}

std::string Input::drawn_text() const {
  if (drawn_.size() == run.ranks.size()) return {};
  return fmt::format(" {} of {} ranks are drawn: those that were waited for most, then the first.", drawn_.size(),
                     run.ranks.size());
}

std::size_t Input::columns(std::size_t lines, std::size_t budget) {
  return std::clamp<std::size_t>(budget / std::max<std::size_t>(1, lines), 40, kMostColumns);
}

const std::vector<PhaseGroup>& phase_groups() {
  using profile::Phase;
  static const std::vector<PhaseGroup> groups = {
      {"computing", "compute", {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph}},
      {"optimizer", "optimizer", {Phase::kOptimizerStep, Phase::kStepLrSchedulers}},
      {"exposed communication", "wait", {Phase::kAllreduceWait}},
      {"loading data", "data", {Phase::kDataloaderNext, Phase::kToDevice}},
      {"validation", "validation", {Phase::kValidation}},
      {"checkpoints", "checkpoint", {Phase::kCheckpoint}},
      {"metrics, callbacks, other",
       "other",
       {Phase::kFromDevice, Phase::kReduceMetrics, Phase::kCallbacks, Phase::kDeviceWait, Phase::kOther}}};
  return groups;
}

std::int64_t group_ns(const profile::PhaseTimes& times, const PhaseGroup& group) {
  std::int64_t sum = 0;
  for (const profile::Phase phase : group.phases) sum += times[static_cast<std::size_t>(phase)];
  return sum;
}

double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json rounded(const std::vector<double>& values, int digits) {
  Json result = Json::array();
  for (const double value : values) result.push_back(rounded(value, digits));
  return result;
}

std::vector<Point> thin(std::vector<Point> points, std::size_t most) {
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  if (points.size() <= most || most == 0) return points;
  const double first = points.front().x;
  const double width = std::max((points.back().x - first) / static_cast<double>(most), 1e-9);
  std::vector<Point> result;
  std::size_t from = 0;
  while (from < points.size()) {
    const double column = std::floor((points[from].x - first) / width);
    Point sum{0, 0, points[from].low, points[from].high};
    std::size_t to = from;
    for (; to < points.size() && std::floor((points[to].x - first) / width) == column; ++to) {
      sum.x += points[to].x;
      sum.y += points[to].y;
      sum.low = std::min(sum.low, points[to].low);
      sum.high = std::max(sum.high, points[to].high);
    }
    const auto count = static_cast<double>(to - from);
    result.push_back({sum.x / count, sum.y / count, sum.low, sum.high});
    from = to;
  }
  return result;
}

Json line_set(const std::string& name, const std::vector<Point>& points, bool band) {
  std::vector<double> x, y, low, high;
  for (const Point& point : points) {
    x.push_back(point.x);
    y.push_back(point.y);
    low.push_back(point.low);
    high.push_back(point.high);
  }
  Json set = {{"name", name}, {"x", rounded(x, 6)}, {"y", rounded(y)}};
  if (band) {
    set["low"] = rounded(low);
    set["high"] = rounded(high);
  }
  return set;
}

Json time_series(const Input& input, const std::string& title, const std::string& unit) {
  return {{"kind", "series"},
          {"group", "time"},
          {"whole", {0, rounded(std::max(input.end_s(), 1e-3), 6)}},
          {"x", {{"title", "time since the start"}, {"unit", "s"}}},
          {"y", {{"title", title}, {"unit", unit}}},
          {"sets", Json::array()}};
}

Json shares_chart(const Json& labels, const char* name, const Json& values, const Json& colors, const char* unit) {
  return {{"kind", "shares"},
          {"labels", labels},
          {"y", {{"unit", unit}}},
          {"sets", {{{"name", name}, {"y", values}, {"colors", colors}}}}};
}

Json few_lines(Json spec, std::vector<Point> all, const std::string& what) {
  if (spec["sets"].empty()) return nullptr;
  if (spec["sets"].size() <= kFewLines) return spec;
  for (Json& set : spec["sets"]) set["hidden"] = true;
  Json together = line_set("all " + what + ", from least to greatest", thin(std::move(all), kMostColumns), true);
  together["color"] = "compute";
  spec["sets"].insert(spec["sets"].begin(), std::move(together));
  return spec;
}

Json lines_of_ranks(const Input& input, const std::string& title, const std::string& unit, std::size_t most,
                    const std::function<std::vector<Point>(const RankProfile&)>& points_of) {
  Json spec = time_series(input, title, unit);
  const std::size_t columns = Input::columns(input.drawn().size() * 2, most);
  std::vector<Point> all;
  for (const RankProfile* rank : input.drawn()) {
    const std::vector<Point> points = thin(points_of(*rank), columns);
    if (points.empty()) continue;
    all.insert(all.end(), points.begin(), points.end());
    Json set = line_set("rank " + std::to_string(rank->rank), points, false);
    set["rank"] = rank->rank;
    spec["sets"].push_back(std::move(set));
  }
  return few_lines(std::move(spec), std::move(all), "ranks");
}

Histogram::Histogram(double first, double last, std::size_t bins)
    : first_(first), width_(std::max((last - first) / static_cast<double>(bins), 1e-9)), counts_(bins, 0) {}

void Histogram::add(double value, std::int64_t times) {
  const double bin = std::floor((value - first_) / width_);
  counts_[static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(counts_.size() - 1)))] += times;
}

bool Histogram::empty() const {
  return std::all_of(counts_.begin(), counts_.end(), [](std::int64_t count) { return count == 0; });
}

ShownDurations shown_durations(const Input& input) {
  ShownDurations shown;
  const double limit = kBeyondPlain * longest_plain_s(input);
  if (limit <= 0 || input.analysis.steps.max_s <= limit) return shown;
  shown.up_to_s = limit;
  for (const RankProfile& rank : input.run.ranks) {
    each_duration(rank, [&](double seconds, std::int64_t times) {
      shown.all += times;
      if (seconds > limit) shown.longer += times;
    });
  }
  return shown;
}

std::string text_of(const ShownDurations& shown) {
  if (!shown.up_to_s) return {};
  return fmt::format(
      " {} of {} durations of all ranks are longer than the axis shows ({}): a triangle at its upper edge "
      "marks where they are.",
      count_text(shown.longer), count_text(shown.all), seconds_text(*shown.up_to_s));
}

Json step_series(const Input& input, const ShownDurations& shown) {
  const std::size_t ranks = input.drawn().size();
  const std::size_t columns = Input::columns(ranks * 4, kMostPoints);
  Json spec = time_series(input, "duration of a batch", "s");
  if (shown.up_to_s) spec["y"].update({{"max", rounded(*shown.up_to_s)}, {"clipped", true}});
  std::vector<Point> all;
  for (const RankProfile* rank : input.drawn()) {
    std::vector<Point> points = thin(step_points(input, *rank), columns);
    if (points.empty()) continue;
    all.insert(all.end(), points.begin(), points.end());
    Json set = line_set("rank " + std::to_string(rank->rank), points, ranks == 1);
    set["rank"] = rank->rank;
    if (shown.up_to_s) set["beyond"] = beyond(points, *shown.up_to_s);
    spec["sets"].push_back(std::move(set));
  }
  return few_lines(std::move(spec), std::move(all), "ranks");
}

Json step_histogram(const Input& input) {
  const StepStatistics& steps = input.analysis.steps;
  if (steps.count == 0) return nullptr;
  const double last = std::min(steps.max_s, steps.p95_s + kWidest * (steps.p95_s - steps.median_s)) * 1.0001;
  const auto empty = [&] { return Histogram(steps.min_s, std::max(last, steps.min_s * 1.01 + 1e-9), kStepBins); };
  std::map<std::string, Histogram> hosts;
  Json spec = {{"kind", "histogram"},
               {"x0", empty().first()},
               {"dx", empty().width()},
               {"x", {{"title", "duration of a batch"}, {"unit", "s"}}},
               {"y", {{"title", "batches"}, {"unit", ""}}},
               {"sets", Json::array()}};
  for (const RankProfile& rank : input.run.ranks) {
    Histogram& host = hosts.try_emplace(rank.host, empty()).first->second;
    each_duration(rank, [&](double seconds, std::int64_t times) { host.add(seconds, times); });
  }
  for (const auto& [name, histogram] : hosts) {
    spec["sets"].push_back({{"name", name.empty() ? "all ranks" : "host " + name}, {"y", histogram.counts()}});
  }
  if (input.run.ranks.size() < 2) return spec;
  for (const RankProfile* rank : input.drawn()) {
    Histogram histogram = empty();
    each_duration(*rank, [&](double seconds, std::int64_t times) { histogram.add(seconds, times); });
    spec["sets"].push_back({{"name", "rank " + std::to_string(rank->rank)},
                            {"rank", rank->rank},
                            {"hidden", true},
                            {"y", histogram.counts()}});
  }
  return spec;
}

}  // namespace dtrain::analysis::report
