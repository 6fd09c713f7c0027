// Whether ranks, and GPUs, have the same to do.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/rule_text.h"
#include "report/sections.h"
#include "report/system_charts.h"
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

}  // namespace dtrain::analysis::report
