// The sections on how ranks work together: the exchange of gradients (its time, the part that computing hid, its
// bandwidth), balance, and the batch size.
#include <algorithm>
#include <cctype>
#include <functional>
#include <map>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "read/text.h"
#include "report/charts.h"
#include "report/sections.h"
#include "summary/summary_words.h"

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
    for (const CollectiveLine& collective : rank.collectives) {
      if (collective.bucket < 0 || collective.bus_bandwidth <= 0) continue;
      lines[{collective.operation, collective.bucket}].push_back(
          point(input.seconds(rank, collective.started_ns), static_cast<double>(collective.bus_bandwidth)));
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

Json rank_bars(const Input& input) {
  Json labels = Json::array(), compute = Json::array(), optimizer = Json::array(), data = Json::array(),
       exposed = Json::array();
  for (const RankSummary& rank : input.analysis.summary.ranks) {
    if (labels.size() >= kMostRanks) break;
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, rank.steps));
    labels.push_back("rank " + std::to_string(rank.rank));
    compute.push_back(rounded(rank.compute_s / steps));
    optimizer.push_back(rounded(rank.optimizer_s / steps));
    data.push_back(rounded(rank.data_s / steps));
    exposed.push_back(rounded(rank.exposed_s / steps));
  }
  return {{"kind", "bars"},
          {"stacked", true},
          {"labels", labels},
          {"y", {{"title", "time of a batch"}, {"unit", "s"}}},
          {"sets",
           {{{"name", "computing"}, {"color", "compute"}, {"y", compute}},
            {{"name", "optimizer"}, {"color", "optimizer"}, {"y", optimizer}},
            {{"name", "data"}, {"color", "data"}, {"y", data}},
            {{"name", "exposed communication"}, {"color", "wait"}, {"y", exposed}}}}};
}

// "4 x 32, 1 x 31"
std::string split_text(const Json& plan) {
  std::map<std::int64_t, int, std::greater<>> ranks;
  for (const Json& batch : list_at(plan, "batch_per_rank")) {
    if (batch.is_number_integer()) ++ranks[batch.get<std::int64_t>()];
  }
  std::vector<std::string> parts;
  for (const auto& [batch, count] : ranks) parts.push_back(fmt::format("{} x {}", count, batch));
  return join(parts, ", ");
}

}  // namespace

void write_collectives(Page& page, const Input& input) {
  page.begin_section("collectives", "Communication");
  const RunSummary& s = input.analysis.summary;
  if (s.world_size < 2) {
    return page.absent("No communication.", "One rank exchanges nothing.",
                       "Train on two slots or more (resources.slots_per_trial).");
  }
  std::string exposed = exposed_text(s);
  exposed[0] = static_cast<char>(std::toupper(exposed[0]));
  page.paragraph(exposed + ". Computing does not hide it; means of the ranks.");
  if (s.strategy && !s.strategy->text.empty()) page.paragraph(s.strategy->text);
  if (s.compression && !s.compression->text.empty()) page.paragraph(s.compression->text);
  if (s.collectives.empty()) {
    return page.absent("No collective was recorded.", "The ranks ended before their first exchange.");
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
    table.row({name_of(c), Cell(count_text(c.count), count), Cell::bytes(static_cast<double>(c.bytes) / count),
               Cell::seconds(c.seconds_p50), Cell::seconds(c.exposed_s), Cell::share(share).colored("wait"),
               bandwidth(c.bus_bandwidth_p50)});
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

// The sections on balance: whether ranks, and GPUs, have equal and enough work.

void write_balance(Page& page, const Input& input) {
  page.begin_section("balance", "Workload balancing");
  write_rule(page, input, "LoadBalancing");
  const std::vector<RankSummary>& ranks = input.analysis.summary.ranks;
  if (ranks.size() > 1 && input.analysis.summary.steps > 0) {
    const auto per_step = [](const RankSummary& rank) {
      return rank.compute_s / static_cast<double>(std::max<std::int64_t>(1, rank.steps));
    };
    const auto [least, most] = std::ranges::minmax_element(ranks, {}, per_step);
    page.chart({.id = "rank-balance",
                .title = "What a batch consists of, on each rank",
                .text = fmt::format(
                    "Computing takes from {} on rank {} to {} on rank {}; the others wait for the slowest, within "
                    "their exposed communication.",
                    seconds_text(per_step(*least)), least->rank, seconds_text(per_step(*most)), most->rank),
                .spec = rank_bars(input)});
  } else {
    page.absent("No balance between ranks.", "There is only one rank.");
  }
  Json gpus = gpu_histogram(input);
  if (gpus.is_null()) return page.absent("No balance between GPUs.", "No GPU was sampled: the ranks computed on CPUs.");
  page.chart({.id = "gpu-histogram",
              .title = "How utilization is distributed, by GPU",
              .text = "GPUs with the same work have the same shape.",
              .spec = std::move(gpus)});
}

// The section on the batch size: whether the batch keeps the computing devices busy.

void write_batch_size(Page& page, const Input& input) {
  page.begin_section("batch-size", "Batch size");
  write_rule(page, input, "BatchSize");
  const RunSummary& s = input.analysis.summary;
  if (!s.global_batch_size && s.steps == 0) {
    return page.absent("Nothing about the batch size.", "No batch was recorded, and plan.json has no batch size.");
  }
  std::vector<std::pair<std::string, std::string>> facts;
  if (s.global_batch_size) facts.emplace_back("global batch", count_text(*s.global_batch_size));
  if (const std::string split = split_text(input.run.plan); !split.empty()) facts.emplace_back("of the ranks", split);
  if (const std::int64_t effective = integer(input.run.plan, "effective_batch_size"); effective > 0) {
    facts.emplace_back("effective batch, with aggregation", count_text(effective));
  }
  if (s.world_size > 1) {
    facts.emplace_back("exposed communication",
                       format_percent(s.exposed_share) + " of the loop" +
                           (s.graphs_s > 0 ? ", without CUDA graphs, where it is not known" : ""));
  }
  page.facts(facts);
}

}  // namespace dtrain::analysis::report
