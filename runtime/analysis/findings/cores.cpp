// Cores: ranks that wait for one, cores without work, other programs on them, and a quota that takes them away. A quota
// looks like other faults: ranks stall every tenth of a second, wait for each other in turn, or lose their cores to
// programs that use them while the quota stops the ranks.
#include <algorithm>
#include <map>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

struct Waiting {
  std::string host;
  double sum_percent = 0;
  std::int64_t points = 0;
};

std::string judge_oversubscription(const RuleData& data, const Parameters& p, Finding& result) {
  std::map<int, Waiting> ranks;
  for (const HostSeries& host : data.hosts) {
    for (const HostSample& sample : judged_samples(host, p.patience(), result)) {
      for (const RankReading& reading : sample.ranks) {
        if (!reading.wait_percent) continue;
        Waiting& rank = ranks[reading.rank];
        rank.host = host.host;
        rank.sum_percent += *reading.wait_percent;
        ++rank.points;
      }
    }
  }
  if (ranks.empty()) return "how long ranks waited for a core is not recorded";
  Items judged(result, "ranks");
  for (const auto& [number, rank] : ranks) {
    const double mean = rank.sum_percent / static_cast<double>(rank.points);
    judged.add({{"rank", number}, {"host", rank.host}, {"waited_percent", mean}}, rank.points, mean > p["threshold"]);
  }
  const auto count = static_cast<std::int64_t>(ranks.size());
  return judged.finish_with({{"ranks", count}, {"fine", count - result.triggered}});
}

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

std::string judge_idle_cores(const RuleData& data, const Parameters& p, Finding& result) {
  if (has_gpus(data.hosts)) return "GPUs do the computing of this run";
  std::int64_t cores = 0, idle = 0, unknown = 0;
  Items hosts(result, "hosts");
  for (const HostSeries& host : data.hosts) {
    const auto samples = judged_samples(host, p.patience(), result);
    const std::vector<double> means = utilization(host.machine.cores, samples);
    if (means.empty()) {
      ++unknown;
      continue;
    }
    const auto here = static_cast<std::int64_t>(means.size());
    // If the run is granted the time of fewer cores than there are, the others have to be idle.
    const double granted = std::min(static_cast<double>(here), host.machine.cpu_limit.value_or(1e9));
    const auto beyond = static_cast<std::int64_t>(static_cast<double>(here) - granted);
    const double limit = p["cpu_threshold"];
    const auto below = std::count_if(means.begin(), means.end(), [&](double mean) { return mean < limit; });
    const std::int64_t idle_here = std::max<std::int64_t>(0, below - beyond);
    const double share = percent(idle_here, here - beyond);
    cores += here - beyond;
    idle += idle_here;
    Json facts = describe(host);
    facts.update({{"cores", here - beyond}, {"idle", idle_here}, {"percent", share}, {"core_utilisation", means}});
    hosts.add(std::move(facts), static_cast<std::int64_t>(samples.size()), share > p["threshold"]);
  }
  if (hosts.empty()) return unknown == 0 ? kNoSystemSample : "how busy the run's cores were is not recorded";
  return hosts.finish_with({{"hosts", static_cast<std::int64_t>(data.hosts.size())},
                            {"not_known", unknown},
                            {"cores", cores},
                            {"busy_cores", cores - idle},
                            {"idle_cores", idle}});
}

constexpr double kMainPart = 0.5;     // the least part of a cost that the quota must explain
constexpr double kMostPeriods = 1.5;  // a stall is over when the next period begins

// Returns an index into RunProfile::ranks: a rank of the host on which the quota costs most.
std::size_t worst_rank(const Evidence& evidence) {
  const auto worst = std::ranges::max_element(evidence.contention, {}, &Contention::throttled_s);
  return static_cast<std::size_t>(worst - evidence.contention.begin());
}

}  // namespace

// Ranks that are ready to compute but wait for a core: there are more runnable threads than cores, either the run's own
// (ranks, OpenMP, loader workers) or other programs'.
Judgement cpu_oversubscription() {
  return {.id = "CPUOversubscription",
          .text = "Ranks that could compute but wait for a core.",
          .group = "cpu",
          .unit = "ranks",
          .title =
              "Looks for ranks whose training thread could run and has no core: more threads want to run than "
              "there are cores.",
          .advice =
              "Use fewer ranks (resources.slots_per_trial) or threads (OMP_NUM_THREADS) on that host, or keep "
              "other programs away from it.",
          .parameters = {real("threshold", "Percentage of the time that a rank may wait for a core.", 10), kPatience},
          .judge = judge_oversubscription};
}

// For runs on CPUs: physical cores that the run may use but hardly uses. Both threads of a core share its arithmetic
// units, so a core counts as busy as the busier of its logical CPUs.
Judgement idle_cores() {
  return {
      .id = "IdleCores",
      .text = "Cores that the run may use but leaves idle (runs without GPU).",
      .group = "cpu",
      .unit = "hosts",
      .title =
          "Looks for cores that the run may use and that have hardly anything to do (the counterpart of low "
          "GPU utilization where CPUs train).",
      .advice =
          "Train with more ranks (resources.slots_per_trial), give each rank more threads (OMP_NUM_THREADS), "
          "or use a larger batch.",
      .parameters = {real("threshold", "Percentage of the cores that may be idle.", 25),
                     real("cpu_threshold", "Mean utilization, in percent, below which a core is idle.", 20), kPatience},
      .judge = judge_idle_cores};
}

std::vector<Finding> find_contended_hosts(const Run& run) {
  const Evidence& evidence = run.evidence;
  std::set<int> named;
  for (const Straggler& straggler : run.analysis.stragglers.ranks) {
    if (straggler.cause == "cpu_contention" && straggler.cost_s >= kLeastShare * evidence.loop_s) {
      named.insert(straggler.rank);
    }
  }
  double foreign = 0, wait_s = 0;
  std::size_t count = 0;
  for (std::size_t r = 0; r < evidence.run.ranks.size(); ++r) {
    if (named.contains(evidence.run.ranks[r].rank)) continue;
    foreign += evidence.contention[r].foreign_percent.value_or(0);
    wait_s += evidence.contention[r].taken_s();
    ++count;
  }
  if (count == 0 || foreign / static_cast<double>(count) < kForeignPercent) return {};
  const double seconds = wait_s / static_cast<double>(count);
  return {{.cause = "cpu_contention",
           .title = fmt::format("programs outside the run take the ranks' cores for {}", seconds_text(seconds)),
           .evidence = fmt::format(
               "they load a rank's cores with {:.0f}% of a core on average, and a training thread had no core for {} "
               "(mean of {}; no_core in the waterfall: it lies across its parts)",
               foreign / static_cast<double>(count), seconds_text(seconds),
               named.empty() ? std::string("the ranks") : fmt::format("the {} without a finding of their own", count)),
           .advice = "end them or move them to cores without ranks, or use fewer slots on these hosts",
           .seconds = seconds,
           .fault = true}};
}

bool is_throttled(const Evidence& evidence) {
  return throttled_s(evidence.contention) >= kWorthwhile * evidence.loop_s;
}

bool is_quota_doing(const Evidence& evidence, double seconds, int rank) {
  const double lost_s =
      rank < 0 ? throttled_s(evidence.contention) : evidence.contention[static_cast<std::size_t>(rank)].throttled_s;
  return lost_s >= kLeastShare * evidence.loop_s && lost_s >= kMainPart * seconds;
}

bool is_quota_doing(const Evidence& evidence, const Stalls& stalls) {
  const double lost_s = throttled_s(evidence.contention);
  double period_s = 0;
  for (const MonitorProfile& monitor : evidence.run.monitors) {
    if (const auto quota = cpu_quota_of(monitor)) period_s = std::max(period_s, quota->period_s);
  }
  return is_quota_doing(evidence, stalls.seconds) && lost_s > 0 && stalls.median_excess_s <= kMostPeriods * period_s;
}

// Finds that a CPU quota stops the ranks; no other finding covers that time.
std::vector<Finding> find_cpu_quota(const Run& run) {
  const Evidence& evidence = run.evidence;
  const double lost_s = throttled_s(evidence.contention);
  if (lost_s < kLeastShare * evidence.loop_s) return {};
  const std::size_t at = worst_rank(evidence);
  const RankProfile& rank = evidence.run.ranks[at];
  const MonitorProfile* const monitor = evidence.run.monitor_of(rank);
  const auto quota = monitor ? cpu_quota_of(*monitor) : std::nullopt;
  const auto here = std::count_if(evidence.run.ranks.begin(), evidence.run.ranks.end(),
                                  [&](const RankProfile& other) { return other.agent == rank.agent; });
  const bool one_host = on_one_host(evidence.run);
  Finding finding{
      .title = fmt::format("the CPU quota of {}{} stops the ranks for {}", quota ? quota->whose : "a cgroup",
                           one_host ? "" : " on " + rank.host, seconds_text(lost_s)),
      .evidence = fmt::format("the quota was used up in {:.0f}% of its periods, and a rank stood still for {} (mean)",
                              evidence.contention[at].throttled_percent.value_or(0), seconds_text(lost_s)),
      .advice =
          "raise the quota (docker run --cpus, a CPU limit of the container in Kubernetes, CPUQuota= in systemd; "
          "cpu.max or cpu.cfs_quota_us of the cgroup)",
      .seconds = lost_s,
      .host = one_host ? "" : rank.host,
      .fault = true};
  if (quota) {
    finding.evidence +=
        fmt::format("; it grants {:.3g} CPUs' worth of time in each {} to {} and what runs beside {}", quota->cpus,
                    seconds_text(quota->period_s), count_of(here, "rank"), here == 1 ? "it" : "them");
  }
  if (here > 1) {
    finding.advice +=
        ", or use fewer ranks (resources.slots_per_trial) or threads (OMP_NUM_THREADS), which wait less for each other";
  }
  return {finding};
}

}  // namespace dtrain::analysis::findings
