// Findings about ranks for which others wait, except those that wait because of their loaders or their samples.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "findings/make_findings.h"
#include "measure/statistics.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr std::size_t kParts = 20;  // of a run, in which ranks' speeds are compared
constexpr std::size_t kLeastRowsOfPart = 10;
constexpr double kCoresDiffer = 1.1;  // virtual cores of one kind, over a run of some seconds
constexpr double kFarBeyond = 1.2;

struct Words {
  const char* cause;
  const char* what;
  const char* advice;
};

Words words_of(const std::string& cause, bool one_host, bool on_gpus) {
  if (cause == "cpu_contention") {
    return {"cpu_contention", "is slowed by other programs on its cores",
            "end those programs or move them to other cores (taskset, cgroups), or give this rank others"};
  }
  if (cause == "compute") {
    return {
        "slow_compute", "computes more slowly than the others",
        on_gpus ? "compare its GPU with theirs (model, clock speed, temperature, what else runs on it: nvidia-smi -q), "
                  "its host's cores where the GPU waits for them, and what its data costs to compute"
        : one_host ? "compare its cores with theirs (kind, clock speed, what else runs on them or beside them), and "
                     "what its data costs to compute"
                   : "compare its host with theirs (clock speed, throttling, memory bandwidth, other ranks on its "
                     "cores), and what its data costs to compute"};
  }
  if (cause == "network") {
    return {"slow_link", "is reached more slowly than the others",
            "look at its host's link: speed, duplex, errors, other traffic"};
  }
  if (cause == "exchange") {
    return {
        "slow_rank", "comes later to exchanges than its phases explain",
        "see whether something else runs on its core now and then (no core in dtrain top), and whether a longer run "
        "says the same"};
  }
  return {"slow_rank", "comes later than the others", "look at what it does in the phases named"};
}

// Returns the seconds by which a rank without a core holds up the exchange: its time without a core less the part that
// its own phases show, but at most the time of the exchanges in which it came last.
double lost_in_exchange_s(const Evidence& evidence, std::size_t rank, double late_s) {
  return std::clamp(lacking_s(evidence.contention, rank) - late_s, 0.0, evidence.waits.ranks[rank].exchange_s);
}

// True if the rank computes longer than the variation of the others' speed explains. Cores of one kind differ for
// seconds at a time because of neighbours (such as other machines on the same processor); in a short run, not every
// core meets them. Either the rank lags throughout: its median part takes longer than nine tenths of the others' parts
// and over a tenth longer than their median, and nine tenths of its parts take longer than their median. Or its mean
// exceeds the others' slowest part by a fifth. A value of the others is the median over their ranks.
bool is_beyond_variation(const Evidence& evidence, std::size_t rank) {
  const Rows& rows = evidence.rows;
  const std::size_t count = rows.rows().size();
  const std::size_t parts = std::min(kParts, count / kLeastRowsOfPart);
  if (parts < 2) return true;
  std::vector<std::vector<double>> paces(rows.ranks());
  for (std::size_t part = 0; part < parts; ++part) {
    double steps = 0;
    std::vector<double> compute_s(rows.ranks(), 0);
    for (std::size_t i = part * count / parts; i < (part + 1) * count / parts; ++i) {
      steps += static_cast<double>(rows.rows()[i].steps);
      for (std::size_t r = 0; r < rows.ranks(); ++r) {
        compute_s[r] += static_cast<double>(compute_of(rows.at(i, r))) / 1e9;
      }
    }
    for (std::size_t r = 0; r < rows.ranks(); ++r) paces[r].push_back(compute_s[r] / steps);
  }
  std::vector<double> usual_others, slow_others, slowest_others;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    if (r == rank) continue;
    usual_others.push_back(median_low(paces[r]));
    slow_others.push_back(quantile(paces[r], 0.9));
    slowest_others.push_back(quantile(paces[r], 1));
  }
  const bool all_along = median_low(paces[rank]) > quantile(slow_others, 0.5) &&
                         quantile(paces[rank], 0.1) > quantile(usual_others, 0.5) &&
                         median_low(paces[rank]) > kCoresDiffer * quantile(usual_others, 0.5);
  return all_along || mean(paces[rank]) > kFarBeyond * quantile(slowest_others, 0.5);
}

}  // namespace

std::size_t index_of_rank(const RunProfile& run, int rank) {
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i].rank == rank) return i;
  }
  return 0;
}

std::vector<Finding> find_slow_ranks(const Evidence& evidence, const Analysis& analysis,
                                     const std::optional<Stalls>& stalls) {
  std::vector<Finding> findings;
  const bool one_host = on_one_host(evidence.run);
  const bool on_gpus = ranks_have_gpus(evidence.run);
  for (const Straggler& straggler : analysis.stragglers.ranks) {
    if (straggler.cause == "none" || straggler.cause == "loader" || straggler.cause == "uneven_shard") continue;
    const std::size_t index = index_of_rank(evidence.run, straggler.rank);
    if (is_quota_doing(evidence, straggler.waited_s, static_cast<int>(index))) continue;
    const bool stalling = stalls && stalls->rank == static_cast<int>(index);
    Finding finding;
    const double stalled_s = stalling ? stalls->waited_s : 0;
    finding.seconds = straggler.cost_s - stalled_s;
    // If the ranks come last in turn, no single rank is the cause.
    if (finding.seconds < 0.3 * straggler.waited_s || finding.seconds < kLeastShare * evidence.loop_s) continue;
    const Words words = words_of(straggler.cause, one_host, on_gpus);
    std::string more, more_s;
    if (straggler.cause == "cpu_contention") {
      const double in_exchange_s = lost_in_exchange_s(evidence, index, straggler.cost_s);
      finding.seconds += in_exchange_s;
      more_s = fmt::format(", and {} that exchanges took longer because it had no core", seconds_text(in_exchange_s));
    }
    finding.id = "straggler";
    finding.cause = words.cause;
    const bool varies = straggler.cause == "compute" && !is_beyond_variation(evidence, index);
    finding.fault = !varies && straggler.cause != "exchange";
    if (varies) {
      more = fmt::format("; no more than {} of one kind differ by during a run", on_gpus ? "GPUs" : "cores");
    }
    finding.rank = straggler.rank;
    finding.host = straggler.host;
    finding.title = fmt::format("{} {}: the others wait {} for it", rank_name(evidence.run.ranks[index]), words.what,
                                seconds_text(finding.seconds));
    finding.evidence = fmt::format(
        "it came last to {} of {} exchanges, and the others waited {} for it: {} beyond what they wait for "
        "an ordinary rank{}{}; {}{}",
        count_text(straggler.steps), count_text(analysis.stragglers.compared_steps), seconds_text(straggler.waited_s),
        seconds_text(straggler.cost_s), less_stalls(stalled_s), more_s, straggler.evidence, more);
    finding.advice = words.advice;
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace dtrain::analysis
