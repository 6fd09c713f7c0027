// The charts of learning curves, and of the monitors' samples over time.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "measure/system_metrics.h"
#include "read/text.h"
#include "report/charts.h"

namespace dtrain::analysis::report {
namespace {

// "nan or infinite 3 times, first in batch 120"; empty: all its values are finite.
std::string non_finite_note(const Curve& curve) {
  const std::int64_t count = curve.non_finite();
  if (count == 0) return {};
  return fmt::format("nan or infinite {}, first in batch {}", count == 1 ? "once" : count_text(count) + " times",
                     count_text(*curve.first_non_finite()));
}

constexpr std::size_t kMostCharts = 40;
constexpr std::size_t kFewestPoints = 40;
constexpr int kDigits = 6;

// The curves of one chart.
struct CurveGroup {
  std::string title, unit;
  std::vector<CurveKind> kinds;
  std::string name;  // of the curves
};

bool is_metric(CurveKind kind) {
  return kind == CurveKind::kTraining || kind == CurveKind::kValidation;
}

// Returns the groups in order: the loss, the metric by which the model is judged, the others by name, the rates.
std::vector<CurveGroup> curve_groups(const std::vector<NamedCurves>& runs, const std::string& first_metric) {
  std::vector<std::tuple<int, std::string, CurveKind>> found;
  for (const NamedCurves& run : runs) {
    for (const Curve& curve : run.curves->curves) {
      const bool metric = is_metric(curve.kind);
      const int place = !metric                      ? 3 + static_cast<int>(curve.kind)
                        : curve.name == "loss"       ? 0
                        : curve.name == first_metric ? 1
                                                     : 2;
      found.emplace_back(place, curve.name, curve.kind);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::vector<CurveGroup> groups;
  for (const auto& [place, name, kind] : found) {
    const bool together = runs.size() == 1 && is_metric(kind);
    if (together && !groups.empty() && groups.back().name == name && is_metric(groups.back().kinds.front())) {
      groups.back().kinds.push_back(kind);
      continue;
    }
    const std::string title = is_metric(kind) && !together ? name + " (" + word_of(kind) + ")" : name;
    groups.push_back({title, kind == CurveKind::kThroughput ? "samples/s" : "", {kind}, name});
  }
  return groups;
}

Json number_or_null(double value) {
  return std::isfinite(value) ? Json(rounded(value, kDigits)) : Json();
}

// Returns at most `most` points; neighbours are joined into one with the values of both.
Json curve_set(const std::string& name, const Curve& curve, std::size_t most) {
  const std::size_t stride = (curve.points.size() + most - 1) / most;
  Json x = Json::array(), t = Json::array(), y = Json::array(), low = Json::array(), high = Json::array();
  Json bad = Json::array();
  bool several = false;
  for (std::size_t from = 0; from < curve.points.size(); from += stride) {
    const auto part = std::span(curve.points).subspan(from, std::min(stride, curve.points.size() - from));
    const CurvePoint point = together(part);
    if (point.non_finite > 0) bad.push_back(y.size());
    several = several || point.finite > 1;
    x.push_back(point.batch);
    t.push_back(rounded(point.seconds, kDigits));
    y.push_back(number_or_null(point.mean));
    low.push_back(number_or_null(point.low));
    high.push_back(number_or_null(point.high));
  }
  Json set = {{"name", name}, {"batches", std::move(x)}, {"time", std::move(t)}, {"y", std::move(y)}};
  if (several) {
    set["low"] = std::move(low);
    set["high"] = std::move(high);
  }
  if (!bad.empty()) set["bad"] = std::move(bad);
  // A validation is exact, and a rate is set: only values that scatter from batch to batch are smoothed.
  set["scatters"] = curve.kind != CurveKind::kValidation && curve.kind != CurveKind::kLearningRate;
  return set;
}

// Returns the curve in words, for readers who cannot see the chart. `name`: the curve's; empty: the chart's title names
// it.
std::string curve_words(std::string name, const Curve& curve) {
  if (!name.empty()) {
    name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
    name += ": ";
  }
  const auto least = curve.least(), greatest = curve.greatest();
  const std::string bad = non_finite_note(curve);
  if (!least) return name + bad + ".";
  return fmt::format("{}{} to {}, at last {}{}.", name, value_text(least->value), value_text(greatest->value),
                     value_text(curve.last().value), bad.empty() ? "" : "; " + bad);
}

Json restarts_of(const RunCurves& run) {
  Json marks = Json::array();
  for (const Restart& restart : run.restarts) {
    marks.push_back(
        {{"batches", restart.batch},
         {"time", rounded(restart.seconds, kDigits)},
         {"text", fmt::format("attempt {} went on after batch {}", restart.attempt, count_text(restart.batch))}});
  }
  return marks;
}

Chart curve_chart(const std::vector<NamedCurves>& runs, const CurveGroup& group, std::size_t number,
                  std::size_t points) {
  const bool one_run = runs.size() == 1;
  double batches = 1, seconds = 1e-3;
  for (const NamedCurves& run : runs) {
    batches = std::max(batches, static_cast<double>(run.curves->batches));
    seconds = std::max(seconds, run.curves->seconds);
  }
  Json sets = Json::array();
  std::vector<std::string> words;
  for (std::size_t index = 0; index < runs.size(); ++index) {
    for (const CurveKind kind : group.kinds) {
      const Curve* curve = runs[index].curves->find(kind, group.name);
      if (!curve) continue;
      const std::string name = !one_run ? runs[index].name : is_metric(kind) ? word_of(kind) : group.name;
      Json set = curve_set(name, *curve, points);
      if (one_run) set["color"] = kind == CurveKind::kValidation ? "wait" : "compute";
      if (!one_run) set["place"] = index;  // a run has one colour in all charts
      words.push_back(curve_words(one_run && !is_metric(kind) ? "" : name, *curve));
      sets.push_back(std::move(set));
    }
  }
  Json spec = {{"kind", "series"},
               {"group", "curves"},
               {"over",
                {{"batches", {{"title", "batches"}, {"unit", ""}, {"whole", {0, batches}}}},
                 {"time", {{"title", "time of training"}, {"unit", "s"}, {"whole", {0, rounded(seconds, kDigits)}}}}}},
               {"y", {{"title", group.unit}, {"unit", ""}, {"zero", !is_metric(group.kinds.front())}}},
               {"sets", std::move(sets)}};
  if (one_run) spec["marks"] = restarts_of(*runs.front().curves);
  return {.id = fmt::format("curve-{}", number),
          .title = group.title,
          .text = join(words, " "),
          .spec = std::move(spec),
          .height = 240};
}

constexpr std::size_t kUtilBins = 20;

const double* find(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& pair) { return pair.first == name; });
  return found == metrics.end() ? nullptr : &found->second;
}

// Returns a rank of the monitor's host, because choosing a rank shows its host's line.
int first_rank_of(const Input& input, const MonitorProfile& monitor) {
  for (const RankProfile* rank : input.drawn()) {
    if (rank->agent == monitor.agent) return rank->rank;
  }
  return -1;
}

// Limits the axis of percent to a quarter if all values are small; otherwise it shows 100%.
Json with_range(Json spec) {
  if (spec.is_null() || spec["y"]["unit"] != "percent") return spec;
  double highest = 0;
  for (const Json& set : spec["sets"]) {
    for (const Json& value : set["y"]) highest = std::max(highest, value.get<double>());
  }
  spec["y"]["max"] = highest > 25 ? 100 : 25;
  return spec;
}

}  // namespace

void write_curve_controls(Page& page) {
  page.raw(
      "<div class=\"switches\" role=\"group\" aria-label=\"How the curves are drawn\">"
      "<label>Over <select id=\"curves-over\"><option value=\"batches\">batches</option>"
      "<option value=\"time\">time</option></select></label>"
      "<label>Smoothing <input id=\"curves-smoothing\" type=\"range\" min=\"0\" max=\"0.98\" step=\"0.02\" "
      "value=\"0.6\"> <output id=\"curves-smoothed\">0.60</output></label>"
      "<label><input id=\"curves-log\" type=\"checkbox\"> Log scale</label></div>\n");
}

std::size_t write_curve_charts(Page& page, const std::vector<NamedCurves>& runs, const std::string& first_metric) {
  std::vector<CurveGroup> groups = curve_groups(runs, first_metric);
  const std::size_t left_out = groups.size() > kMostCharts ? groups.size() - kMostCharts : 0;
  if (left_out > 0) groups.erase(groups.begin() + kMostCharts, groups.end());
  const std::size_t lines = std::max<std::size_t>(1, groups.size() * runs.size());
  const std::size_t points = std::clamp(kMostPoints / (5 * lines), kFewestPoints, kMostCurvePoints);
  page.begin_columns();
  for (std::size_t i = 0; i < groups.size(); ++i) page.chart(curve_chart(runs, groups[i], i, points));
  page.end_columns();
  return left_out;
}

std::string value_text(double value) {
  if (!std::isfinite(value)) return non_finite_text(value);
  const bool many = std::abs(value) >= 1000 && std::abs(value) < 1e9;  // written as a count, not as 1.234e+04
  return many ? count_text(std::llround(value)) : fmt::format("{:.4g}", value);
}

Cell value_cell(const std::optional<CurveValue>& value) {
  if (!value) return "-";
  const std::string shown = fmt::format("{} (batch {})", value_text(value->value), count_text(value->batch));
  return std::isfinite(value->value) ? Cell(shown, value->value) : Cell(shown);
}

Json host_series(const Input& input, const std::vector<MetricLine>& metrics, const std::string& title,
                 const std::string& unit) {
  Json spec = time_series(input, title, unit);
  const std::vector<MonitorProfile>& monitors = input.run.monitors;
  const std::size_t columns = Input::columns(monitors.size() * metrics.size() * 2, kMostPoints);
  std::vector<Point> all;
  for (std::size_t i = 0; i < std::min(monitors.size(), kMostRanks); ++i) {
    for (const MetricLine& metric : metrics) {
      std::vector<Point> points;
      for (const SystemLine& sample : monitors[i].samples) {
        const double* value = find(sample.metrics, metric.metric);
        if (value) points.push_back(point(input.seconds(monitors[i], sample.time_ns), *value));
      }
      if (points.empty()) continue;
      points = thin(std::move(points), columns);
      all.insert(all.end(), points.begin(), points.end());
      const std::string name = monitors.size() == 1 ? metric.words : host_name(monitors[i]) + ": " + metric.words;
      Json set = line_set(name, points, false);
      if (const int rank = first_rank_of(input, monitors[i]); rank >= 0) set["rank"] = rank;
      spec["sets"].push_back(std::move(set));
    }
  }
  return with_range(few_lines(std::move(spec), std::move(all), "hosts"));
}

Json gpu_series(const Input& input, const std::string& metric, const std::string& title, const std::string& unit,
                bool of_total) {
  Json spec = time_series(input, title, unit);
  std::size_t count = 0;
  for (const MonitorProfile& monitor : input.run.monitors) count += monitor.gpus.size();
  const std::size_t columns = Input::columns(count * 2, kMostPoints);
  std::vector<Point> all;
  for (const MonitorProfile& monitor : input.run.monitors) {
    std::map<std::int64_t, std::vector<Point>> gpus;
    const auto ranks = ranks_by_gpu(input.run, monitor);
    std::map<std::int64_t, double> totals;
    for (const GpuLine& gpu : monitor.gpus) totals[gpu.index] = static_cast<double>(gpu.total_memory_bytes);
    for (const SystemLine& sample : monitor.samples) {
      for (const auto& [index, values] : sample.gpus) {
        const double* value = find(values, metric);
        if (ranks && !ranks->contains(index)) continue;
        if (!value || (of_total && totals[index] <= 0)) continue;
        const double shown = of_total ? 100 * (1 - *value / totals[index]) : *value;
        gpus[index].push_back(point(input.seconds(monitor, sample.time_ns), shown));
      }
    }
    for (auto& [index, points] : gpus) {
      if (spec["sets"].size() >= kMostRanks) break;
      points = thin(std::move(points), columns);
      all.insert(all.end(), points.begin(), points.end());
      Json set = line_set(host_name(monitor) + " GPU " + std::to_string(index), points, false);
      const int rank = ranks ? ranks->at(index) : first_rank_of(input, monitor);
      if (rank >= 0) set["rank"] = rank;
      spec["sets"].push_back(std::move(set));
    }
  }
  return with_range(few_lines(std::move(spec), std::move(all), "GPUs"));
}

Json gpu_histogram(const Input& input) {
  Json spec = {{"kind", "histogram"},
               {"x0", 0},
               {"dx", 100.0 / kUtilBins},
               {"x", {{"title", "utilization"}, {"unit", "percent"}}},
               {"y", {{"title", "share of the samples"}, {"unit", "share"}}},
               {"sets", Json::array()}};
  for (const MonitorProfile& monitor : input.run.monitors) {
    std::map<std::int64_t, Histogram> gpus;
    std::map<std::int64_t, std::int64_t> samples;
    const auto ranks = ranks_by_gpu(input.run, monitor);
    for (const SystemLine& sample : monitor.samples) {
      for (const auto& [index, values] : sample.gpus) {
        const double* value = find(values, "gpu_util");
        if (!value || (ranks && !ranks->contains(index))) continue;
        gpus.try_emplace(index, 0, 100.0001, kUtilBins).first->second.add(*value);
        ++samples[index];
      }
    }
    for (const auto& [index, histogram] : gpus) {
      if (spec["sets"].size() >= kMostRanks) break;
      std::vector<double> shares;
      for (const std::int64_t bin : histogram.counts()) {
        shares.push_back(static_cast<double>(bin) / static_cast<double>(samples[index]));
      }
      spec["sets"].push_back({{"name", host_name(monitor) + " GPU " + std::to_string(index)}, {"y", rounded(shares)}});
    }
  }
  if (spec["sets"].empty()) return nullptr;
  return spec;
}

Json rank_gpu_memory_series(const Input& input) {
  return lines_of_ranks(input, "reserved memory", "bytes", kMostPoints, [&](const RankProfile& rank) {
    std::vector<Point> points;
    for (const DeviceMemoryLine& line : rank.device_memory) {
      points.push_back(point(input.seconds(rank, line.time_ns), static_cast<double>(line.reserved_bytes)));
    }
    return points;
  });
}

Json rank_memory_series(const Input& input) {
  return lines_of_ranks(input, "resident memory", "bytes", kMostPoints, [&](const RankProfile& rank) {
    std::vector<Point> points;
    for (const MemoryLine& line : rank.memory) {
      points.push_back(point(input.seconds(rank, line.time_ns), static_cast<double>(line.resident_bytes)));
    }
    const MonitorProfile* monitor = points.empty() ? input.run.monitor_of(rank) : nullptr;
    for (std::size_t i = 0; monitor && i < monitor->samples.size(); ++i) {
      for (const ProcessLine& process : monitor->samples[i].processes) {
        if (process.rank != rank.rank) continue;
        points.push_back(point(input.seconds(*monitor, monitor->samples[i].time_ns), process.resident_bytes));
      }
    }
    return points;
  });
}

}  // namespace dtrain::analysis::report
