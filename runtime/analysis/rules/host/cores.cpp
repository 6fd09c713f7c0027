// Rules about the cores of a host: too many threads for them, or too few.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <map>

#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

// Ranks that are ready to compute but wait for a core: there are more runnable threads than cores, either the run's own
// (ranks, OpenMP, loader workers) or other programs'.
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

// For runs on CPUs: physical cores that the run may use but hardly uses. Both threads of a core share its arithmetic
// units, so a core counts as busy as the busier of its logical CPUs.

namespace {

struct IdleCores {
  static constexpr const char* kWord = "IdleCores";
  static constexpr const char* kText = "Cores that the run may use but leaves idle (runs without GPU).";
  double threshold = 25, cpu_threshold = 20;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the cores that may be idle."}, threshold, kPercent);
    keys.number({"cpu_threshold", "Mean utilization, in percent, below which a core is idle."}, cpu_threshold,
                kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// Returns the mean utilization of each core; empty: no sample has it.
std::vector<double> utilization(const std::vector<std::vector<int>>& cores, std::span<const HostSample> samples) {
  std::vector<double> sums(cores.size(), 0);
  std::int64_t points = 0;
  for (const HostSample& sample : samples) {
    if (sample.cores_percent.empty()) continue;
    ++points;
    for (std::size_t core = 0; core < cores.size(); ++core) {
      double busiest = 0;
      for (const int cpu : cores[core]) {
        const auto at = static_cast<std::size_t>(cpu);
        if (cpu >= 0 && at < sample.cores_percent.size()) busiest = std::max(busiest, sample.cores_percent[at]);
      }
      sums[core] += busiest;
    }
  }
  if (points == 0) return {};
  for (double& sum : sums) sum /= static_cast<double>(points);
  return sums;
}

}  // namespace

RuleResult IdleCores::judge(const RuleData& data) const {
  RuleResult result = begin_result(
      kWord, "cpu", "hosts",
      "Looks for cores that the run may use and that have hardly anything to do (the counterpart of low GPU "
      "utilization where CPUs train).",
      "Train with more ranks (resources.slots_per_trial), give each rank more threads (OMP_NUM_THREADS), or use a "
      "larger batch.");
  if (has_gpus(data.hosts)) return not_applicable(std::move(result), "GPUs do the computing of this run");
  std::int64_t cores = 0;
  std::int64_t idle = 0;
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const HostSeries& host : data.hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(result.counts, host, judged);
    const std::vector<double> means = utilization(host.machine.cores, judged.samples);
    if (means.empty()) {
      ++unknown;
      continue;
    }
    const auto here = static_cast<std::int64_t>(means.size());
    // If the run is granted the time of fewer cores than there are, the others have to be idle.
    const double granted = std::min(static_cast<double>(here), host.machine.cpu_limit.value_or(1e9));
    const auto beyond = static_cast<std::int64_t>(static_cast<double>(here) - granted);
    const auto below = std::count_if(means.begin(), means.end(), [&](double mean) { return mean < cpu_threshold; });
    const std::int64_t idle_here = std::max<std::int64_t>(0, below - beyond);
    const double share = percent(idle_here, here - beyond);
    const bool triggers = share > threshold;
    cores += here - beyond;
    idle += idle_here;
    result.datapoints += static_cast<std::int64_t>(judged.samples.size());
    result.triggered += triggers ? 1 : 0;
    all.push_back({{"agent", host.agent},
                   {"host", host.host},
                   {"cores", here - beyond},
                   {"idle", idle_here},
                   {"percent", share},
                   {"core_utilisation", means},
                   {"triggered", triggers}});
  }
  if (all.empty()) {
    return not_applicable(std::move(result),
                          unknown == 0 ? kNoSystemSample : "how busy the run's cores were is not recorded");
  }
  result.counts["hosts"] = static_cast<std::int64_t>(data.hosts.size());
  result.counts["not_known"] = unknown;
  result.counts["cores"] = cores;
  result.counts["busy_cores"] = cores - idle;
  result.counts["idle_cores"] = idle;
  result.counts["triggered"] = result.triggered;
  result.details["hosts"] = std::move(all);
  return result;
}

std::unique_ptr<Rule> make_idle_cores() {
  return std::make_unique<RuleOf<IdleCores>>();
}

}  // namespace dtrain::analysis::rules
