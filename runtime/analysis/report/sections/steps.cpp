// How long steps took, which were outliers, and what happened then.
#include <spdlog/fmt/fmt.h>

#include "report/outliers.h"
#include "report/rule_text.h"
#include "report/sections.h"
#include "report/step_charts.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

Cell seconds_cell(double seconds) {
  return {seconds_text(seconds), seconds};
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
    table.row({name, seconds_cell(s.mean_s), seconds_cell(s.max_s), seconds_cell(s.p99_s), seconds_cell(s.p95_s),
               seconds_cell(s.median_s), seconds_cell(s.min_s), seconds_cell(s.stddev_s), seconds_cell(s.mad_s),
               Cell(count_text(s.count), static_cast<double>(s.count))},
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
  page.chart(
      {.id = "outlier-modes",
       .title = "TRAIN or EVAL",
       .text = fmt::format("Over all ranks {} outliers among training batches and {} among validations.",
                           count_text(outliers.train), count_text(outliers.eval)),
       .spec = {
           {"kind", "shares"},
           {"labels", {"TRAIN", "EVAL"}},
           {"y", {{"unit", ""}}},
           {"sets",
            {{{"name", "outliers"}, {"y", {outliers.train, outliers.eval}}, {"colors", {"compute", "validation"}}}}}}});
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
  for (const Outlier& one : outliers.longest) {
    table.row(
        {Cell(count_text(one.step->batch), static_cast<double>(one.step->batch)),
         Cell(std::to_string(one.rank->rank), one.rank->rank), seconds_cell(one.seconds), seconds_cell(one.excess_s),
         one.group.empty() ? std::string("-") : fmt::format("{} (+{})", one.group, seconds_text(one.group_excess_s)),
         metric_cell(one.system, "cpu_util_simple", as_is, "%"), metric_cell(one.system, "io_wait", as_is, "%"),
         metric_cell(one.system, "disk_throughput_read", in_mebibytes, ""),
         metric_cell(one.system, "net_throughput_recv", in_mebibytes, "")},
        one.rank->rank);
  }
  page.table(table);
}

}  // namespace

void write_steps(Page& page, const Input& input) {
  page.begin_section("steps", "Batch durations");
  const StepStatistics& steps = input.analysis.steps;
  if (steps.count == 0) {
    page.absent("No durations.", "No batch was recorded.", "");
    return;
  }
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
  if (outliers.batches == 0) {
    page.paragraph("No batch was an outlier.");
    return;
  }
  page.paragraph(fmt::format("{} batches have outliers; together they took {} more than as many of median length.",
                             count_text(outliers.batches), seconds_text(outliers.seconds)));
  write_correlation(page, outliers);
}

}  // namespace dtrain::analysis::report
