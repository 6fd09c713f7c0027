#include "dtrain/analysis/analysis.h"

#include <algorithm>
#include <functional>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "measure/evidence.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;

constexpr double kSmallestForeignPercent = 5;  // of one core: the system itself causes less
constexpr double kMainShare = 0.5;             // of a rank's lateness: the main cause has at least this share
constexpr double kContentionShare = 0.3;

double later(const WaitedFor& waited, std::initializer_list<Phase> phases) {
  double sum = 0;
  for (const Phase phase : phases) sum += waited.later_s[static_cast<std::size_t>(phase)];
  return sum;
}

// Returns the seconds beyond the median of the others that the rank computes because it has more samples.
double more_samples_s(const Rows& rows, std::size_t rank) {
  double sum = 0;
  std::vector<double> others;
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    others.clear();
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      if (r != rank) others.push_back(static_cast<double>(rows.at(i, r).samples));
    }
    const StepLine& own = rows.at(i, rank);
    const auto samples = static_cast<double>(own.samples);
    const double middle = quantile(others, 0.5);
    if (samples > middle) sum += static_cast<double>(compute_of(own)) / 1e9 * (1 - middle / samples);
  }
  return sum;
}

// True if the rank's cores carry load from outside the run, and more than the other ranks' cores do.
bool has_foreign_load(const Evidence& evidence, std::size_t rank) {
  std::vector<double> others;
  for (std::size_t r = 0; r < evidence.contention.size(); ++r) {
    if (r != rank) others.push_back(evidence.contention[r].foreign_percent.value_or(0));
  }
  const double own = evidence.contention[rank].foreign_percent.value_or(0);
  return own >= kSmallestForeignPercent && own >= 1.5 * quantile(others, 0.5);
}

std::string contention_text(const Contention& contention) {
  std::string text;
  if (contention.foreign_percent) {
    text = fmt::format("programs outside the run load its cores with {:.0f}% of a core", *contention.foreign_percent);
  }
  if (contention.wait_percent) {
    text += fmt::format("{}its training thread had no core for {} ({:.1f}% of the loop)", text.empty() ? "" : "; ",
                        seconds_text(contention.wait_s), *contention.wait_percent);
    if (contention.throttled_s > 0) {
      text += fmt::format(", {} of that because of a CPU quota",
                          seconds_text(std::min(contention.wait_s, contention.throttled_s)));
    }
  }
  return text;
}

void explain(const Evidence& evidence, std::size_t r, Straggler& rank) {
  const WaitedFor& waited = evidence.waits.ranks[r];
  const double loading_s = later(waited, {Phase::kDataloaderNext, Phase::kToDevice});
  const double compute_s = later(waited, {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph});
  const double update_s = later(waited, {Phase::kOptimizerStep, Phase::kStepLrSchedulers});
  double all_s = 0;
  for (const double seconds : waited.later_s) all_s += std::max(0.0, seconds);
  const std::string numbers = fmt::format(
      "in the exchanges to which it came last it had taken {} longer to compute, {} longer for the optimizer step and "
      "{} longer to get data than the middle of the others",
      seconds_text(compute_s), seconds_text(update_s), seconds_text(loading_s));
  const double samples_s = rank.cost_s > 0 ? more_samples_s(evidence.rows, r) : 0;
  const double without_core_s = lacking_s(evidence.contention, r);
  const Contention& contention = evidence.contention[r];
  const bool measured = contention.wait_percent.has_value();
  if (rank.cost_s <= 0 || waited.seconds <= 0) {
    rank.cause = "none";
    rank.evidence = "it comes last no more than the others";
  } else if (samples_s > 0 && samples_s >= kMainShare * all_s) {
    rank.cause = "uneven_shard";
    rank.evidence = fmt::format("it has more samples than the others, which takes it {}", seconds_text(samples_s));
  } else if (has_foreign_load(evidence, r) && (!measured || without_core_s >= kContentionShare * all_s)) {
    rank.cause = "cpu_contention";
    rank.evidence = contention_text(contention) + "; " + numbers;
  } else if (all_s < kMainShare * waited.seconds && on_one_host(evidence.run)) {
    rank.cause = "exchange";  // ranks of one host have no link between them
    rank.evidence = fmt::format("its own phases explain {} of {}: what is left passes in exchanges within the host",
                                seconds_text(all_s), seconds_text(waited.seconds));
  } else if (all_s < kMainShare * waited.seconds && !rank.host.empty()) {
    rank.cause = "network";
    rank.evidence = fmt::format("its own phases explain {} of {}: what is left passes between {} and the other hosts",
                                seconds_text(all_s), seconds_text(waited.seconds), rank.host);
  } else if (loading_s >= kMainShare * all_s) {
    rank.cause = "loader";
    rank.evidence = numbers;
  } else if (compute_s + update_s >= kMainShare * all_s) {
    rank.cause = "compute";
    rank.evidence = numbers + (measured && without_core_s >= kContentionShare * all_s
                                   ? "; " + contention_text(contention) + ": its own threads compete for its cores"
                                   : "");
  } else {
    rank.cause = "other_phases";
    rank.evidence = numbers + "; the rest passes in its other phases";
  }
}

}  // namespace

std::size_t count_hosts(const RunProfile& run) {
  std::set<std::string> hosts;
  for (const RankProfile& rank : run.ranks) hosts.insert(rank.agent.empty() ? rank.host : rank.agent);
  return hosts.size();
}

Stragglers find_stragglers(const Evidence& evidence) {
  Stragglers result;
  result.compared_steps = evidence.waits.compared_steps;
  result.waiting_s = evidence.exposed.waiting_s;
  result.clock_error_ns = evidence.run.clock_error_ns();
  if (evidence.run.ranks.size() < 2) return result;
  for (std::size_t r = 0; r < evidence.run.ranks.size(); ++r) {
    const WaitedFor& waited = evidence.waits.ranks[r];
    Straggler rank;
    rank.rank = evidence.run.ranks[r].rank;
    rank.host = evidence.run.ranks[r].host;
    rank.steps = waited.steps;
    rank.waited_s = waited.seconds;
    std::vector<double> others;
    for (std::size_t o = 0; o < evidence.waits.ranks.size(); ++o) {
      if (o != r) others.push_back(evidence.waits.ranks[o].seconds);
    }
    rank.cost_s = std::max(0.0, waited.seconds - quantile(others, 0.5));
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      if (waited.later_s[i] != 0) {
        rank.later_by_phase_s[std::string(profile::name_of(static_cast<Phase>(i)))] = waited.later_s[i];
      }
    }
    explain(evidence, r, rank);
    result.ranks.push_back(std::move(rank));
  }
  std::ranges::stable_sort(result.ranks, std::greater{}, &Straggler::waited_s);
  return result;
}

Json to_json(const Stragglers& stragglers) {
  Json ranks = Json::array();
  for (const Straggler& rank : stragglers.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"host", rank.host},
                     {"steps", rank.steps},
                     {"waited_s", rank.waited_s},
                     {"cost_s", rank.cost_s},
                     {"later_by_phase_s", rank.later_by_phase_s},
                     {"cause", rank.cause},
                     {"evidence", rank.evidence}});
  }
  return {{"compared_steps", stragglers.compared_steps},
          {"waiting_s", stragglers.waiting_s},
          {"clock_error_ns", or_null(stragglers.clock_error_ns)},
          {"ranks", std::move(ranks)}};
}

}  // namespace dtrain::analysis
