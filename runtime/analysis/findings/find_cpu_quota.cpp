// The finding that the CPU quota of a cgroup stops the ranks. Other faults look alike: ranks stall every tenth of a
// second, wait for each other in turn, or lose their cores to programs that use them while the quota stops the ranks.
#include <algorithm>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "findings/make_findings.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kMainPart = 0.5;     // the least part of a cost that the quota must explain
constexpr double kMostPeriods = 1.5;  // a stall is over when the next period begins

// Returns an index into RunProfile::ranks: a rank of the host on which the quota costs most.
std::size_t worst_rank(const Evidence& evidence) {
  const auto worst =
      std::max_element(evidence.contention.begin(), evidence.contention.end(),
                       [](const Contention& a, const Contention& b) { return a.throttled_s < b.throttled_s; });
  return static_cast<std::size_t>(worst - evidence.contention.begin());
}

}  // namespace

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
  for (const AgentProfile& agent : evidence.run.agents) {
    if (const auto quota = cpu_quota_of(agent)) period_s = std::max(period_s, quota->period_s);
  }
  return is_quota_doing(evidence, stalls.seconds) && lost_s > 0 && stalls.median_excess_s <= kMostPeriods * period_s;
}

std::optional<Finding> find_cpu_quota(const Evidence& evidence) {
  const double lost_s = throttled_s(evidence.contention);
  if (lost_s < kLeastShare * evidence.loop_s) return std::nullopt;
  const std::size_t at = worst_rank(evidence);
  const RankProfile& rank = evidence.run.ranks[at];
  const AgentProfile* const agent = evidence.run.agent_of(rank);
  const auto quota = agent ? cpu_quota_of(*agent) : std::nullopt;
  const auto here = std::count_if(evidence.run.ranks.begin(), evidence.run.ranks.end(),
                                  [&](const RankProfile& other) { return other.agent == rank.agent; });
  Finding finding;
  finding.id = finding.cause = "cpu_quota";
  finding.fault = true;
  finding.seconds = lost_s;
  const bool one_host = on_one_host(evidence.run);
  if (!one_host) finding.host = rank.host;
  const std::string whose = quota ? quota->whose : "a cgroup";
  finding.title = fmt::format("the CPU quota of {}{} stops the ranks for {}", whose, one_host ? "" : " on " + rank.host,
                              seconds_text(lost_s));
  finding.evidence =
      fmt::format("the quota was used up in {:.0f}% of its periods, and a rank stood still for {} (mean)",
                  evidence.contention[at].throttled_percent.value_or(0), seconds_text(lost_s));
  if (quota) {
    finding.evidence +=
        fmt::format("; it grants {:.3g} CPUs' worth of time in each {} to {} and what runs beside {}", quota->cpus,
                    seconds_text(quota->period_s), count_of(here, "rank"), here == 1 ? "it" : "them");
  }
  finding.advice =
      "raise the quota (docker run --cpus, a CPU limit of the container in Kubernetes, CPUQuota= in systemd; cpu.max "
      "or "
      "cpu.cfs_quota_us of the cgroup)";
  if (here > 1) {
    finding.advice +=
        ", or use fewer ranks (resources.slots_per_trial) or threads (OMP_NUM_THREADS), which wait less for each other";
  }
  return finding;
}

}  // namespace dtrain::analysis
