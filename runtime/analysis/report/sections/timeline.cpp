// The section with each rank's phases over time.
#include "report/sections.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <cmath>

#include "report/charts.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

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

Json timeline_spec(const Input& input) {
  const bool any = std::any_of(input.run.ranks.begin(), input.run.ranks.end(),
                               [](const RankProfile& rank) { return rank.step_count() > 0; });
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
  if (spec.is_null()) {
    page.absent("No timeline.", "No batch was recorded.", "");
    return;
  }
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
