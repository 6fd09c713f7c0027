// The input of all sections (the run, its analysis, and one time axis for all charts), and the charts. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"
#include "report/page.h"

namespace dtrain::analysis::report {

// Limits of drawing, so that a long run on many ranks still makes a small file.
inline constexpr std::size_t kMostRanks = 64;       // with a row or a line of their own
inline constexpr std::size_t kMostCells = 100'000;  // shares in the timeline
inline constexpr std::size_t kMostPoints = 40'000;  // values in a chart of lines
inline constexpr std::size_t kMostColumns = 400;    // along any time axis: more cannot be seen
inline constexpr std::size_t kMostOutliers = 100;   // rows

class Input {
 public:
  Input(const RunProfile& profile, const Analysis& known);

  const RunProfile& run;
  const Analysis& analysis;

  // Seconds since the first rank's process started, on rank 0's clock.
  double seconds(const RankProfile& rank, std::int64_t monotonic_ns) const;
  double seconds(const MonitorProfile& monitor, std::int64_t monotonic_ns) const;
  double end_s() const { return end_s_; }  // of the last thing recorded

  // Returns the ranks that are drawn one by one, ascending: all, or if they are too many those for which others waited
  // most.
  const std::vector<const RankProfile*>& drawn() const { return drawn_; }
  // Returns the note for charts that do not draw all ranks; otherwise empty.
  std::string drawn_text() const;

  // Returns the number of columns of a chart of `lines` lines with at most `budget` values.
  static std::size_t columns(std::size_t lines, std::size_t budget);

 private:
  std::int64_t zero_ns_ = 0;  // rank 0's clock
  double end_s_ = 0;
  std::vector<const RankProfile*> drawn_;
};

// Phases that are drawn as one.
struct PhaseGroup {
  const char* name;
  const char* color;  // of report.css
  std::vector<profile::Phase> phases;
};
const std::vector<PhaseGroup>& phase_groups();
std::int64_t group_ns(const profile::PhaseTimes& times, const PhaseGroup& group);

// Rounds for the page: more decimals than a pixel shows would be useless bytes.
double rounded(double value, int digits = 4);
Json rounded(const std::vector<double>& values, int digits = 4);

inline std::string host_name(const MonitorProfile& monitor) {
  return monitor.host.empty() ? monitor.agent : monitor.host;
}

// The charts of the report: values over time and distributions in as few numbers as a chart can show. Any thread may
// call.

struct Point {
  double x = 0, y = 0;
  double low = 0, high = 0;  // of what the point stands for
};
inline Point point(double x, double y) {
  return {x, y, y, y};
}

// Returns at most `most` points: neighbours in time become one with their mean, least and greatest value.
std::vector<Point> thin(std::vector<Point> points, std::size_t most);

// Returns a set of a chart of kind "series" (assets/40-charts.js). `band`: with the least and greatest values.
Json line_set(const std::string& name, const std::vector<Point>& points, bool band);

// Returns the spec of a chart over time, still without lines. All such charts share one time axis and zoom together.
Json time_series(const Input& input, const std::string& title, const std::string& unit);
// Returns the spec of a ring: a share of the whole for each label.
Json shares_chart(const Json& labels, const char* name, const Json& values, const Json& colors, const char* unit = "s");
// Returns the chart. If it has many lines, a line with a band represents all of them, and choosing a rank shows its
// line. `all`: the points of all lines; `what`: the plural of their subjects, "ranks". Null: there is no line.
Json few_lines(Json spec, std::vector<Point> all, const std::string& what);
// Returns a chart over time with a line for each drawn rank that has points; at most `most` values in all.
Json lines_of_ranks(const Input& input, const std::string& title, const std::string& unit, std::size_t most,
                    const std::function<std::vector<Point>(const RankProfile&)>& points_of);

// Counts in bins of equal width over [first, last); values outside count in the first and in the last bin.
class Histogram {
 public:
  Histogram(double first, double last, std::size_t bins);
  void add(double value, std::int64_t times = 1);
  bool empty() const;
  double first() const { return first_; }
  double width() const { return width_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  double first_, width_;
  std::vector<std::int64_t> counts_;
};

// --- the durations of steps: over time, and their distribution (charts.cpp) ---

// The upper end of charts of durations, so that one validation does not flatten all batches.
struct ShownDurations {
  std::optional<double> up_to_s;     // empty: all of them
  std::int64_t longer = 0, all = 0;  // batches of all ranks: those beyond the end, and all
};
// Returns an end a fifth beyond the 99th percentile of batches without validation and checkpoint, if some are longer.
ShownDurations shown_durations(const Input& input);
// Returns " 12 of 3,000 batches took longer than the axis shows; …"; empty: all are shown.
std::string text_of(const ShownDurations& shown);

// Returns a line for each drawn rank, and all ranks together if there are several; null: there is no step.
Json step_series(const Input& input, const ShownDurations& shown);
// Returns the histogram of each host, and (if chosen) of each drawn rank; null: there is no step.
Json step_histogram(const Input& input);

// --- samples of monitors: a line for each host, GPU or rank (curve_charts.cpp) ---

// Metrics by name, each with its label; null: no monitor has any of them.
struct MetricLine {
  const char* metric;
  const char* words;
};
Json host_series(const Input& input, const std::vector<MetricLine>& metrics, const std::string& title,
                 const std::string& unit);
// Returns one metric of every GPU. `of_total`: as percent of the GPU's memory that is taken, from its free memory.
Json gpu_series(const Input& input, const std::string& metric, const std::string& title, const std::string& unit,
                bool of_total = false);
// Returns the share of time of each GPU at each utilization.
Json gpu_histogram(const Input& input);
// Returns the GPU memory that each drawn rank has reserved; null: no rank recorded it.
Json rank_gpu_memory_series(const Input& input);
// Returns the resident memory of each drawn rank.
Json rank_memory_series(const Input& input);

// --- learning: each metric of a run, or of several runs, over batches or time (curve_charts.cpp) ---

struct NamedCurves {
  std::string name;  // of the run
  const RunCurves* curves;
};

// The switches of all curves of the page: batches or time, and smoothing.
void write_curve_controls(Page& page);

// Writes a chart for each metric and rate. Of one run, training and validation of a metric are in one chart, and
// restarts are marked; of several runs each line is a run. `first_metric` (searcher.metric) is drawn after the loss.
// Returns the number of charts that did not fit.
std::size_t write_curve_charts(Page& page, const std::vector<NamedCurves>& runs, const std::string& first_metric);

// A metric's value with as many digits as matter.
std::string value_text(double value);
// "0.412 (batch 9,380)"
Cell value_cell(const std::optional<CurveValue>& value);

}  // namespace dtrain::analysis::report
