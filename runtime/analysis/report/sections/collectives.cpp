// The section on the exchange of gradients: its time, the part that computing hid, and its bandwidth.
#include <algorithm>
#include <cctype>
#include <map>

#include <spdlog/fmt/fmt.h>

#include "report/charts.h"
#include "report/sections.h"
#include "summary/summary_words.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostPointsShown = 1500;

std::string name_of(const CollectiveSummary& c) {
  return c.bucket < 0 ? c.operation : fmt::format("{} bucket {}", c.operation, c.bucket);
}

Cell bandwidth(double bytes_per_s) {
  return bytes_per_s > 0 ? Cell(format_bytes(bytes_per_s) + "/s", bytes_per_s) : Cell("-");
}

Json duration_bars(const std::vector<CollectiveSummary>& collectives) {
  Json labels = Json::array(), hidden = Json::array(), exposed = Json::array();
  for (const CollectiveSummary& c : collectives) {
    const double each_s = c.exposed_s / static_cast<double>(std::max<std::int64_t>(1, c.count));
    labels.push_back(name_of(c));
    exposed.push_back(rounded(each_s));
    hidden.push_back(rounded(std::max(0.0, c.seconds_p50 - each_s)));
  }
  return {{"kind", "bars"},
          {"horizontal", true},
          {"stacked", true},
          {"labels", labels},
          {"y", {{"title", "time of one operation"}, {"unit", "s"}}},
          {"sets",
           {{{"name", "the training waited"}, {"color", "wait"}, {"y", exposed}},
            {{"name", "hidden behind computing"}, {"color", "compute"}, {"y", hidden}}}}};
}

// Returns the bus bandwidth over time, of each bucket, on the first rank that recorded any.
Json bandwidth_series(const Input& input) {
  Json spec = time_series(input, "bus bandwidth", "bytes/s");
  for (const RankProfile& rank : input.run.ranks) {
    std::map<std::pair<Operation, std::int32_t>, std::vector<Point>> lines;
    for (const CollectiveLine& one : rank.collectives) {
      if (one.bucket < 0 || one.bus_bandwidth <= 0) continue;
      lines[{one.operation, one.bucket}].push_back(
          point(input.seconds(rank, one.started_ns), static_cast<double>(one.bus_bandwidth)));
    }
    if (lines.empty()) continue;
    const std::size_t most = std::min(kMostColumns, std::max<std::size_t>(40, kMostPointsShown / lines.size()));
    for (auto& [key, points] : lines) {
      if (spec["sets"].size() >= 16) break;
      spec["sets"].push_back(line_set(fmt::format("{} bucket {}", analysis::name_of(key.first), key.second),
                                      thin(std::move(points), most), false));
    }
    return spec;
  }
  return nullptr;
}

}  // namespace

void write_collectives(Page& page, const Input& input) {
  page.begin_section("collectives", "Communication");
  const RunSummary& s = input.analysis.summary;
  if (s.world_size < 2) {
    page.absent("No communication.", "One rank exchanges nothing.",
                "Train on two slots or more (resources.slots_per_trial).");
    return;
  }
  std::string exposed = exposed_text(s);
  exposed[0] = static_cast<char>(std::toupper(exposed[0]));
  page.paragraph(exposed + ". Computing does not hide it; means of the ranks.");
  if (s.strategy && !s.strategy->text.empty()) page.paragraph(s.strategy->text);
  if (s.compression && !s.compression->text.empty()) page.paragraph(s.compression->text);
  if (s.collectives.empty()) {
    page.absent("No collective was recorded.", "The ranks ended before their first exchange.", "");
    return;
  }
  Table table("Collectives, by operation and bucket of the fusion plan",
              {{"operation"},
               {"count", true, "of one rank"},
               {"bytes each", true},
               {"median", true, "from its start to its end"},
               {"waited for", true, "by the training thread, in all, mean of the ranks"},
               {"share", true, "of its duration, that the training thread waited for"},
               {"bus bandwidth", true, "median; bytes on the busiest link a second"}});
  for (const CollectiveSummary& c : s.collectives) {
    const double count = static_cast<double>(std::max<std::int64_t>(1, c.count));
    const double share = c.seconds_p50 > 0 ? std::min(1.0, c.exposed_s / count / c.seconds_p50) : 0;
    table.row({name_of(c), Cell(count_text(c.count), count),
               Cell(format_bytes(static_cast<double>(c.bytes) / count), static_cast<double>(c.bytes) / count),
               Cell(seconds_text(c.seconds_p50), c.seconds_p50), Cell(seconds_text(c.exposed_s), c.exposed_s),
               Cell(format_percent(share), share, share).colored("wait"), bandwidth(c.bus_bandwidth_p50)});
  }
  page.table(table);
  std::string sums = collectives_text(s);
  sums[0] = 'T';
  page.paragraph(sums + ".");
  page.begin_columns();
  page.chart({.id = "collective-durations",
              .title = "One operation: waited for, and hidden",
              .text =
                  "Median duration of each operation and the part of it that held up the training; the table above has "
                  "the numbers.",
              .spec = duration_bars(s.collectives),
              .height = std::clamp(70 + 30 * static_cast<int>(s.collectives.size()), 120, 700)});
  page.chart({.id = "bus-bandwidth",
              .title = "Bus bandwidth of the buckets over time",
              .text = "Of one rank, as it measured each exchange of gradients.",
              .spec = bandwidth_series(input)});
  page.end_columns();
}

}  // namespace dtrain::analysis::report
