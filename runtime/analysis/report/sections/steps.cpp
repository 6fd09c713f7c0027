// The sections on steps: durations, outliers and the events during them, and each rank's phases over time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/numeric.h"
#include "read/json_fields.h"
#include "read/text.h"
#include "report/charts.h"
#include "report/sections.h"

namespace dtrain::analysis::report {
namespace {

// Training steps that took far longer than others, and the events during them: the steps that the rule StepOutlier
// counts (docs/rules.md), without the validations inside steps. Any thread may call.
struct Outlier {
  const RankProfile* rank = nullptr;  // the rank on which the step took longest
  const StepLine* step = nullptr;
  double seconds = 0;   // without validation
  double excess_s = 0;  // beyond that rank's median
  std::string group;    // of phases, in which most of the excess was spent
  double group_excess_s = 0;
  const SystemLine* system = nullptr;  // the sample of its host that covers its middle
};

struct OutlierReport {
  std::int64_t batches = 0;                 // a batch counts once, on however many ranks it was slow
  double seconds = 0;                       // their excess together
  std::vector<Outlier> longest;             // kMostOutliers at most, longest first
  std::vector<double> normal_s, outlier_s;  // mean of a step, by phase group
  std::int64_t train = 0, eval = 0;         // of all ranks, as the rule counts them
};

using Groups = std::vector<double>;  // seconds, by phase group

constexpr double kSigmas = 3;
constexpr auto kValidationPhase = static_cast<std::size_t>(profile::Phase::kValidation);

Groups groups_of(const StepLine& step) {
  Groups result;
  for (const PhaseGroup& group : phase_groups())
    result.push_back(static_cast<double>(group_ns(step.phases, group)) / 1e9);
  return result;
}

Groups medians_of(const RankProfile& rank) {
  std::vector<std::vector<double>> columns(phase_groups().size());
  for (const StepLine& step : rank.steps) {
    const Groups groups = groups_of(step);
    for (std::size_t i = 0; i < groups.size(); ++i) columns[i].push_back(groups[i]);
  }
  Groups result;
  for (std::vector<double>& column : columns) result.push_back(median_high(column));
  return result;
}

const SystemLine* sample_near(const MonitorProfile* monitor, std::int64_t time_ns) {
  if (!monitor || monitor->samples.empty()) return nullptr;
  const auto after = std::ranges::lower_bound(monitor->samples, time_ns, {}, &SystemLine::time_ns);
  return after == monitor->samples.end() ? &monitor->samples.back() : &*after;
}

void explain_outlier(const Input& input, const Groups& normal, Outlier& outlier) {
  const Groups groups = groups_of(*outlier.step);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double excess = groups[i] - normal[i];
    const bool is_validation = phase_groups()[i].phases.front() == profile::Phase::kValidation;
    if (excess <= outlier.group_excess_s || is_validation) continue;
    outlier.group_excess_s = excess;
    outlier.group = phase_groups()[i].name;
  }
  const std::int64_t middle_ns = outlier.step->start_ns + outlier.step->wall_ns / 2;
  outlier.system = sample_near(input.run.monitor_of(*outlier.rank), middle_ns);
}

struct UsualPhases {
  double median_s = 0, threshold_s = 0;
};

// Returns the usual phases of each rank's training steps, by the rule, or by the report's own statistics if the rule
// has not judged.
std::map<int, UsualPhases> usual_steps(const Input& input, OutlierReport& report) {
  std::map<int, UsualPhases> result;
  for (const auto& [rank, s] : input.analysis.rank_steps) {
    result[rank] = {s.median_s, s.mean_s + kSigmas * s.stddev_s};
  }
  const Finding* rule = find_rule(input, "StepOutlier");
  if (!rule || !rule->details.contains("series")) return result;
  for (const Json& series : rule->details["series"]) {
    const bool eval = text(series, "mode") == "EVAL";
    (eval ? report.eval : report.train) += integer(series, "outliers");
    if (eval) continue;
    result[static_cast<int>(integer(series, "rank"))] = {number(series, "median_s"), number(series, "threshold_s")};
  }
  return result;
}

struct PhaseMeans {
  Groups sums = Groups(phase_groups().size(), 0);
  double steps = 0;
  void add(const StepLine& step) {
    const Groups groups = groups_of(step);
    for (std::size_t i = 0; i < groups.size(); ++i) sums[i] += groups[i];
    ++steps;
  }
  Groups means() const {
    Groups result = sums;
    for (double& mean : result) mean /= std::max(1.0, steps);
    return result;
  }
};

OutlierReport find_outliers(const Input& input) {
  OutlierReport report;
  const std::map<int, UsualPhases> usual = usual_steps(input, report);
  std::map<std::int64_t, Outlier> batches;
  PhaseMeans normal, slow;
  for (const RankProfile& rank : input.run.ranks) {
    const auto known = usual.find(rank.rank);
    if (known == usual.end()) continue;
    for (const StepLine& step : rank.steps) {
      const double seconds = static_cast<double>(step.wall_ns - step.phases[kValidationPhase]) / 1e9;
      const bool is_slow = seconds > known->second.threshold_s;
      (is_slow ? slow : normal).add(step);
      if (!is_slow) continue;
      Outlier& outlier = batches[step.batch];
      if (outlier.step && outlier.seconds >= seconds) continue;
      outlier.rank = &rank;
      outlier.step = &step;
      outlier.seconds = seconds;
      outlier.excess_s = seconds - known->second.median_s;
    }
  }
  report.normal_s = normal.means();
  report.outlier_s = slow.means();
  std::map<const RankProfile*, Groups> medians;
  for (auto& [batch, outlier] : batches) {
    const auto [typical, added] = medians.try_emplace(outlier.rank);
    if (added) typical->second = medians_of(*outlier.rank);
    explain_outlier(input, typical->second, outlier);
    report.seconds += outlier.excess_s;
    report.longest.push_back(outlier);
  }
  report.batches = static_cast<std::int64_t>(batches.size());
  std::ranges::stable_sort(report.longest, [](const Outlier& a, const Outlier& b) { return a.excess_s > b.excess_s; });
  if (report.longest.size() > kMostOutliers) report.longest.resize(kMostOutliers);
  return report;
}

void write_statistics(Page& page, const Input& input) {
  Table table("Batch durations", {{"batches of"},
                                  {"mean", true},
                                  {"max", true},
                                  {"p99", true},
                                  {"p95", true},
                                  {"p50", true},
                                  {"min", true},
                                  {"standard deviation", true},
                                  {"MAD", true, "median absolute deviation from the median: outliers do not move it"},
                                  {"batches", true}});
  const auto row = [&](const std::string& name, const StepStatistics& s, int rank) {
    table.row({name, Cell::seconds(s.mean_s), Cell::seconds(s.max_s), Cell::seconds(s.p99_s), Cell::seconds(s.p95_s),
               Cell::seconds(s.median_s), Cell::seconds(s.min_s), Cell::seconds(s.stddev_s), Cell::seconds(s.mad_s),
               Cell::count(s.count)},
              rank);
  };
  row("all ranks", input.analysis.steps, -1);
  if (input.analysis.rank_steps.size() > 1) {
    for (const auto& [rank, statistics] : input.analysis.rank_steps)
      row("rank " + std::to_string(rank), statistics, rank);
  }
  page.table(table);
}

std::string metric_cell(const SystemLine* sample, const char* name, double (*shown)(double), const char* unit) {
  if (!sample) return "-";
  for (const auto& [metric_name, value] : sample->metrics) {
    if (metric_name == name) return fmt::format("{:.0f}{}", shown(value), unit);
  }
  return "-";
}

double as_is(double value) {
  return value;
}
double in_mebibytes(double bytes) {
  return bytes / 1024 / 1024;
}

void write_correlation(Page& page, const OutlierReport& outliers) {
  Json labels = Json::array();
  for (const PhaseGroup& group : phase_groups()) labels.push_back(group.name);
  page.begin_columns();
  page.chart({.id = "outlier-phases",
              .title = "What outliers spend their time on",
              .text = "Mean time of a batch in each group of phases: of normal ones and of outliers.",
              .spec = {{"kind", "bars"},
                       {"horizontal", true},
                       {"labels", labels},
                       {"y", {{"title", "time of a batch"}, {"unit", "s"}}},
                       {"sets",
                        {{{"name", "normal batches"}, {"color", "compute"}, {"y", rounded(outliers.normal_s)}},
                         {{"name", "outliers"}, {"color", "wait"}, {"y", rounded(outliers.outlier_s)}}}}}});
  page.chart({.id = "outlier-modes",
              .title = "TRAIN or EVAL",
              .text = fmt::format("Over all ranks {} outliers among training batches and {} among validations.",
                                  count_text(outliers.train), count_text(outliers.eval)),
              .spec = shares_chart({"TRAIN", "EVAL"}, "outliers", {outliers.train, outliers.eval},
                                   {"compute", "validation"}, "")});
  page.end_columns();
  Table table(fmt::format("The {} longest outliers, and what happened then", outliers.longest.size()),
              {{"batch"},
               {"rank", true, "on which it took longest"},
               {"duration", true},
               {"beyond the median", true},
               {"spent on"},
               {"CPU busy", true, "all cores of its host at that time"},
               {"disk wait", true, "time in which cores had nothing to do but wait for a disk"},
               {"disk read MiB/s", true},
               {"network in MiB/s", true}});
  for (const Outlier& outlier : outliers.longest) {
    table.row(
        {Cell::count(outlier.step->batch), Cell(std::to_string(outlier.rank->rank), outlier.rank->rank),
         Cell::seconds(outlier.seconds), Cell::seconds(outlier.excess_s),
         outlier.group.empty() ? std::string("-")
                               : fmt::format("{} (+{})", outlier.group, seconds_text(outlier.group_excess_s)),
         metric_cell(outlier.system, "cpu_util_simple", as_is, "%"), metric_cell(outlier.system, "io_wait", as_is, "%"),
         metric_cell(outlier.system, "disk_throughput_read", in_mebibytes, ""),
         metric_cell(outlier.system, "net_throughput_recv", in_mebibytes, "")},
        outlier.rank->rank);
  }
  page.table(table);
}

struct Axis {
  double first = 0, step = 1;
  std::size_t columns = 1;
};

// Nanoseconds of each group of phases in each column.
class TimelineRow {
 public:
  TimelineRow(const Axis& axis, std::size_t sets) : axis_(axis), cells_(sets, std::vector<double>(axis.columns, 0)) {}

  // Spreads `values` (a value for each set) evenly over [begin, end).
  void add(double begin, double end, const std::vector<double>& values) {
    const double length = std::max(end - begin, 1e-9);
    const auto column_of = [&](double time) {
      const double column = std::floor((time - axis_.first) / axis_.step);
      return static_cast<std::size_t>(std::clamp(column, 0.0, static_cast<double>(axis_.columns - 1)));
    };
    for (std::size_t column = column_of(begin); column <= column_of(end); ++column) {
      const double left = axis_.first + static_cast<double>(column) * axis_.step;
      const double overlap = std::min(end, left + axis_.step) - std::max(begin, left);
      if (overlap <= 0) continue;
      for (std::size_t set = 0; set < values.size(); ++set) cells_[set][column] += values[set] * overlap / length;
    }
  }

  // Returns the percent of each column; a set without any time is an empty list.
  Json shares() const {
    Json result = Json::array();
    for (const std::vector<double>& cells : cells_) {
      Json set = Json::array();
      const bool any = std::any_of(cells.begin(), cells.end(), [](double seconds) { return seconds > 0; });
      for (std::size_t i = 0; any && i < cells.size(); ++i) {
        set.push_back(static_cast<int>(std::lround(std::clamp(cells[i] / axis_.step, 0.0, 1.0) * 100)));
      }
      result.push_back(std::move(set));
    }
    return result;
  }

 private:
  const Axis& axis_;
  std::vector<std::vector<double>> cells_;
};

std::vector<double> group_seconds(const profile::PhaseTimes& times) {
  std::vector<double> result;
  for (const PhaseGroup& group : phase_groups()) result.push_back(static_cast<double>(group_ns(times, group)) / 1e9);
  return result;
}

Json row_of(const Input& input, const RankProfile& rank, const Axis& axis) {
  const std::size_t groups = phase_groups().size();
  TimelineRow row(axis, groups + 1);
  for (const StepLine& step : rank.steps) {
    const double begin = input.seconds(rank, step.start_ns);
    row.add(begin, begin + static_cast<double>(step.wall_ns) / 1e9, group_seconds(step.phases));
  }
  for (const WindowLine& window : rank.windows) {
    row.add(input.seconds(rank, window.start_ns), input.seconds(rank, window.end_ns), group_seconds(window.phases));
  }
  for (const PartLine& part : rank.parts) {
    if (part.part == "loop") continue;
    std::vector<double> values(groups + 1, 0);
    values.back() = static_cast<double>(part.end_ns - part.start_ns) / 1e9;
    row.add(input.seconds(rank, part.start_ns), input.seconds(rank, part.end_ns), values);
  }
  return {{"name", "rank " + std::to_string(rank.rank)}, {"rank", rank.rank}, {"shares", row.shares()}};
}

}  // namespace

void write_steps(Page& page, const Input& input) {
  page.begin_section("steps", "Batch durations");
  const StepStatistics& steps = input.analysis.steps;
  if (steps.count == 0) return page.absent("No durations.", "No batch was recorded.");
  write_statistics(page, input);
  page.chart({.id = "step-histogram",
              .title = "How durations of batches are distributed",
              .text = fmt::format(
                  "Half of the batches take {} or less, 95% take {} or less. Longer ones than the axis shows are "
                  "in the last bar.",
                  seconds_text(steps.median_s), seconds_text(steps.p95_s)),
              .spec = step_histogram(input)});
  page.heading("Outliers");
  const OutlierReport outliers = find_outliers(input);
  write_rule(page, input, "StepOutlier");
  if (outliers.batches == 0) return page.paragraph("No batch was an outlier.");
  page.paragraph(fmt::format("{} batches have outliers; together they took {} more than as many of median length.",
                             count_text(outliers.batches), seconds_text(outliers.seconds)));
  write_correlation(page, outliers);
}

// The section with each rank's phases over time.

Json timeline_spec(const Input& input) {
  const bool any = std::ranges::any_of(input.run.ranks, [](const RankProfile& rank) { return rank.step_count() > 0; });
  if (!any || input.end_s() <= 0) return nullptr;
  Axis axis;
  axis.columns = Input::columns(input.drawn().size() * (phase_groups().size() + 1), kMostCells);
  axis.step = input.end_s() / static_cast<double>(axis.columns);
  Json spec = {{"kind", "timeline"}, {"group", "time"}, {"x0", 0}, {"dx", axis.step}, {"rows", Json::array()}};
  for (const PhaseGroup& group : phase_groups()) spec["sets"].push_back({{"name", group.name}, {"color", group.color}});
  spec["sets"].push_back({{"name", "starting and ending"}, {"color", "skew"}});
  for (const RankProfile* rank : input.drawn()) spec["rows"].push_back(row_of(input, *rank, axis));
  return spec;
}

void write_timeline(Page& page, const Input& input) {
  page.begin_section("timeline", "Timeline of the ranks");
  Json spec = timeline_spec(input);
  if (spec.is_null()) return page.absent("No timeline.", "No batch was recorded.");
  const RunSummary& s = input.analysis.summary;
  std::string most = "nothing";
  double most_share = 0;
  for (const PhaseSummary& phase : s.phases) {
    if (phase.name.find('.') != std::string::npos || phase.share <= most_share) continue;
    most = phase.name;
    most_share = phase.share;
  }
  page.chart(
      {.id = "rank-timeline",
       .title = "Phases of each rank over time",
       .text = fmt::format("Time from left to right, a row for each rank, filled from below by the share of each "
                           "phase; what is empty passed between batches. Most of the loop is {} ({}).{}",
                           most, format_percent(most_share), input.drawn_text()),
       .spec = std::move(spec),
       .height = std::clamp(40 + 34 * static_cast<int>(input.drawn().size()), 110, 760)});
  const ShownDurations shown = shown_durations(input);
  page.chart({.id = "step-series",
              .title = "Duration of batches over time",
              .text = fmt::format("Median {}, shortest {}, longest {}.{} Charts over time are zoomed together.",
                                  seconds_text(input.analysis.steps.median_s), seconds_text(input.analysis.steps.min_s),
                                  seconds_text(input.analysis.steps.max_s), text_of(shown)),
              .spec = step_series(input, shown)});
}

}  // namespace dtrain::analysis::report
