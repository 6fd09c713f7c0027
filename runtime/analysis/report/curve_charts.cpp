#include "report/charts.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json_number.h"
#include "dtrain/base/text.h"
#include "report/input.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

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

const char* unit_of(CurveKind kind) {
  return kind == CurveKind::kThroughput ? "samples/s" : "";
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
    groups.push_back({title, unit_of(kind), {kind}, name});
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

std::string non_finite_note(const Curve& curve) {
  const std::int64_t count = curve.non_finite();
  if (count == 0) return {};
  return fmt::format("nan or infinite {}, first in batch {}", count == 1 ? "once" : count_text(count) + " times",
                     count_text(*curve.first_non_finite()));
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

}  // namespace dtrain::analysis::report
