// The sections on balance: whether ranks, and GPUs, have equal and enough work.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <functional>
#include <map>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "report/charts.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

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

}  // namespace

void write_balance(Page& page, const Input& input) {
  page.begin_section("balance", "Workload balancing");
  write_rule(page, input, "LoadBalancing");
  const std::vector<RankSummary>& ranks = input.analysis.summary.ranks;
  if (ranks.size() > 1 && input.analysis.summary.steps > 0) {
    const auto per_step = [](const RankSummary& rank) {
      return rank.compute_s / static_cast<double>(std::max<std::int64_t>(1, rank.steps));
    };
    const auto [least, most] =
        std::minmax_element(ranks.begin(), ranks.end(),
                            [&](const RankSummary& a, const RankSummary& b) { return per_step(a) < per_step(b); });
    page.chart({.id = "rank-balance",
                .title = "What a batch consists of, on each rank",
                .text = fmt::format(
                    "Computing takes from {} on rank {} to {} on rank {}; the others wait for the slowest, within "
                    "their exposed communication.",
                    seconds_text(per_step(*least)), least->rank, seconds_text(per_step(*most)), most->rank),
                .spec = rank_bars(input)});
  } else {
    page.absent("No balance between ranks.", "There is only one rank.", "");
  }
  Json gpus = gpu_histogram(input);
  if (gpus.is_null()) {
    page.absent("No balance between GPUs.", "No GPU was sampled: the ranks computed on CPUs.", "");
    return;
  }
  page.chart({.id = "gpu-histogram",
              .title = "How utilization is distributed, by GPU",
              .text = "GPUs with the same work have the same shape.",
              .spec = std::move(gpus)});
}

// The section on the batch size: whether the batch keeps the computing devices busy.

namespace {

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

void write_batch_size(Page& page, const Input& input) {
  page.begin_section("batch-size", "Batch size");
  write_rule(page, input, "BatchSize");
  const RunSummary& s = input.analysis.summary;
  if (!s.global_batch_size && s.steps == 0) {
    page.absent("Nothing about the batch size.", "No batch was recorded, and plan.json has no batch size.", "");
    return;
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
