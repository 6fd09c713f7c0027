// The section on data loading: whether batches were ready in time.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "measure/contention.h"
#include "measure/statistics.h"
#include "read/text.h"
#include "report/charts.h"
#include "report/sections.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kQueueBins = 40;
constexpr auto kNext = static_cast<std::size_t>(profile::Phase::kDataloaderNext);

struct Values {
  WeightedValues seconds;
  std::int64_t count = 0;

  void add(double value, std::int64_t times) {
    seconds.emplace_back(value, times);
    count += times;
  }
  double quantile(double share) const { return weighted_quantile(seconds, count, share); }
};

Values waits_for_batches(const RunProfile& run) {
  Values values;
  for (const RankProfile& rank : run.ranks) {
    for (const StepLine& step : rank.steps) values.add(static_cast<double>(step.phases[kNext]) / 1e9, 1);
    const profile::Sketch& folded = rank.window_sketches.phases[kNext];
    if (folded.zeros() > 0) values.add(0, folded.zeros());
    for (const profile::Sketch::Bin& bin : folded.bins()) {
      values.add(profile::Sketch::value_of(bin.index) / 1e9, bin.count);
    }
  }
  std::sort(values.seconds.begin(), values.seconds.end());
  return values;
}

Json histogram_spec(const Values& values) {
  const double last = std::max(1e-6, std::min(values.seconds.back().first, 2 * values.quantile(0.98)) * 1.0001);
  Histogram histogram(0, last, kQueueBins);
  for (const auto& [value, times] : values.seconds) histogram.add(value, times);
  return {{"kind", "histogram"},
          {"x0", 0},
          {"dx", histogram.width()},
          {"x", {{"title", "waiting for a batch"}, {"unit", "s"}}},
          {"y", {{"title", "batches"}, {"unit", ""}}},
          {"sets", {{{"name", "all ranks"}, {"color", "data"}, {"y", histogram.counts()}}}}};
}

// Returns the number of batches that were ready at each request, over time.
Json queue_series(const Input& input) {
  return lines_of_ranks(input, "batches ready", "", kMostPoints / 2, [&](const RankProfile& rank) {
    std::vector<Point> points;
    for (const LoaderLine& line : rank.loader) {
      points.push_back(point(input.seconds(rank, line.time_ns), line.queue_depth));
    }
    for (const WindowLine& window : rank.windows) {
      if (window.loader_records <= 0) continue;
      const double depth = static_cast<double>(window.loader_queue_sum) / static_cast<double>(window.loader_records);
      points.push_back(point(input.seconds(rank, window.end_ns), depth));
    }
    return points;
  });
}

// Returns cells with the use of a rank's workers.
std::vector<Cell> use_cells(const std::optional<LoaderUse>& use) {
  if (!use) return std::vector<Cell>(7, "-");
  const auto of_time = [](double share) { return Cell::share(share).colored("data"); };
  return {of_time(use->cpu_share()),
          of_time(use->no_core_share()),
          of_time(use->storage_share()),
          Cell::bytes(static_cast<double>(use->usage.bytes)),
          Cell::bytes(static_cast<double>(use->usage.disk_bytes)),
          Cell::count(use->usage.requests),
          Cell::count(use->usage.skipped)};
}

void write_table(Page& page, const RunProfile& run, const RunSummary& summary) {
  Table table("Loaders", {{"rank"},
                          {"workers", true},
                          {"pinned memory"},
                          {"batches ready", true, "mean, when one was asked for"},
                          {"found none ready", true, "of its batches"},
                          {"time to make a batch", true, "median, added up over the workers"},
                          {"on a core", true, "of the workers' time"},
                          {"without a core", true, "ready to run, of the workers' time"},
                          {"for storage", true, "waiting, of the workers' time"},
                          {"read", true, "asked of files"},
                          {"from storage", true, "the rest was in the page cache"},
                          {"requests", true},
                          {"left out", true, "damaged samples"}});
  for (const RankProfile& rank : run.ranks) {
    if (rank.loader.empty()) continue;
    const LoaderLine& last = rank.loader.back();
    std::vector<double> fetches;
    for (const LoaderLine& line : rank.loader) {
      if (line.fetch_ns >= 0) fetches.push_back(static_cast<double>(line.fetch_ns) / 1e9);
    }
    const RankSummary* const known = summary.find_rank(rank.rank);
    const bool found = known && known->loader_records > 0;
    const double empty =
        found ? static_cast<double>(known->loader_empty) / static_cast<double>(known->loader_records) : 0;
    std::vector<Cell> row = {Cell::rank(rank.rank),
                             Cell(std::to_string(last.workers), last.workers),
                             last.pinned < 0 ? "not known" : (last.pinned > 0 ? "yes" : "no"),
                             found && known->loader_queue_mean
                                 ? Cell(fmt::format("{:.1f}", *known->loader_queue_mean), *known->loader_queue_mean)
                                 : Cell("-"),
                             found ? Cell::share(empty).colored("data") : Cell("-"),
                             fetches.empty() ? Cell("-") : Cell::seconds(median_high(fetches))};
    const std::vector<Cell> use = use_cells(loader_use(run, rank.rank));
    row.insert(row.end(), use.begin(), use.end());
    table.row(row, rank.rank);
  }
  page.table(table);
}

}  // namespace

void write_data_loading(Page& page, const Input& input) {
  page.begin_section("data-loading", "Data loading");
  write_rule(page, input, "Dataloader");
  write_rule(page, input, "LoaderRate");
  write_rule(page, input, "SmallReads");
  write_rule(page, input, "PinnedMemory");
  const Values values = waits_for_batches(input.run);
  if (values.count == 0) return page.absent("Nothing about data loading.", "No batch was recorded.");
  page.paragraph(fmt::format(
      "The training waited for a batch {} in the median, {} at the 95th percentile and {} at the 25th.",
      seconds_text(values.quantile(0.5)), seconds_text(values.quantile(0.95)), seconds_text(values.quantile(0.25))));
  page.begin_columns();
  page.chart({.id = "loading-histogram",
              .title = "Waiting for batches",
              .text = "How the times waited for data are distributed. Longer ones than the axis shows are in the last "
                      "bar.",
              .spec = histogram_spec(values)});
  page.chart({.id = "queue-series",
              .title = "Batches that were ready",
              .text = "When the training asked for one. Near zero the loader is what the training waits for.",
              .spec = queue_series(input)});
  page.end_columns();
  write_table(page, input.run, input.analysis.summary);
}

}  // namespace dtrain::analysis::report
