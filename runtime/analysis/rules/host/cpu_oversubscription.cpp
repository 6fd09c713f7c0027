// Ranks that could compute and wait for a core: more threads want to run than there are cores, be they the run's own
// (ranks, OpenMP, loader workers) or other programs'.
#include <map>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct CpuOversubscription {
  static constexpr const char* kWord = "CPUOversubscription";
  static constexpr const char* kText = "Ranks that could compute but wait for a core.";
  double threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the time that a rank may wait for a core."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

struct Waiting {
  std::string host;
  double sum_percent = 0;
  std::int64_t points = 0;
};

}  // namespace

RuleResult CpuOversubscription::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "cpu", "ranks",
      "Looks for ranks whose training thread could run and has no core: more threads want to run than there are cores.",
      "Use fewer ranks (resources.slots_per_trial) or threads (OMP_NUM_THREADS) on that host, or keep other programs "
      "away "
      "from it.");
  std::map<int, Waiting> ranks;
  for (const HostSeries& host : data.hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(result.counts, host, judged);
    for (const HostSample& sample : judged.samples) {
      for (const RankReading& reading : sample.ranks) {
        if (!reading.wait_percent) continue;
        Waiting& rank = ranks[reading.rank];
        rank.host = host.host;
        rank.sum_percent += *reading.wait_percent;
        ++rank.points;
      }
    }
  }
  if (ranks.empty()) {
    return not_applicable(std::move(result), "how long ranks waited for a core is not recorded");
  }
  Json all = Json::array();
  for (const auto& [number, rank] : ranks) {
    const double mean = rank.sum_percent / static_cast<double>(rank.points);
    const bool triggers = mean > threshold;
    result.datapoints += rank.points;
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"rank", number}, {"host", rank.host}, {"waited_percent", mean}, {"triggered", triggers}});
  }
  const auto count = static_cast<std::int64_t>(ranks.size());
  result.counts["ranks"] = count;
  result.counts["fine"] = count - result.triggered;
  result.counts["triggered"] = result.triggered;
  result.details["ranks"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_cpu_oversubscription() {
  return std::make_unique<RuleOf<CpuOversubscription>>();
}

}  // namespace dtrain::analysis::rules
