// The finding that ranks have different numbers of samples.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "findings/make_findings.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kLeastEven = 20;  // steps
constexpr double kLikeEven = 0.1;  // difference of the samples
constexpr double kMainShardShare = 0.6;

// Two estimates of the seconds that a row would save if each rank had its fair part of the samples. `by_samples`
// assumes that computing is proportional to samples, at each rank's own pace. It is too small if a batch has a constant
// cost. `by_ranks` assumes that a sample costs the same on every rank, so a fair part takes the ranks' mean. It is too
// large if a rank computes faster while another one waits (they share a core's units or memory). The truth lies in
// between.
struct Uneven {
  double by_samples = 0, by_ranks = 0;
  Uneven& operator+=(const Uneven& other) {
    by_samples += other.by_samples;
    by_ranks += other.by_ranks;
    return *this;
  }
  double seconds() const { return (std::max(0.0, by_samples) + std::max(0.0, by_ranks)) / 2; }
};

Uneven uneven_s(const Rows& rows, std::size_t row, std::size_t most, double fair) {
  const auto count = static_cast<double>(rows.ranks());
  double mean_s = 0, slowest_s = 0;
  for (std::size_t r = 0; r < rows.ranks(); ++r) {
    const StepLine& step = rows.at(row, r);
    const double own_s = static_cast<double>(compute_of(step)) / 1e9;
    mean_s += own_s / count;
    if (step.samples > 0) slowest_s = std::max(slowest_s, own_s * fair / static_cast<double>(step.samples));
  }
  const double largest_s = static_cast<double>(compute_of(rows.at(row, most))) / 1e9;
  return {largest_s - slowest_s, largest_s - mean_s};
}

// Steps in which all ranks had equally many samples. If the run has such steps, they show the possible gain.
struct Even {
  double steps = 0, samples = 0, slowest_s = 0;
  void add(const Rows& rows, std::size_t row) {
    std::int64_t slowest_ns = 0;
    for (std::size_t r = 0; r < rows.ranks(); ++r) slowest_ns = std::max(slowest_ns, compute_of(rows.at(row, r)));
    steps += static_cast<double>(rows.rows()[row].steps);
    samples += static_cast<double>(rows.at(row, 0).samples);
    slowest_s += static_cast<double>(slowest_ns) / 1e9;
  }
  // Returns the mean seconds of a step with about `fair` samples a rank; empty: there are too few such steps.
  std::optional<double> step_s(double fair) const {
    if (steps < kLeastEven || std::abs(samples / steps - fair) > kLikeEven * fair) return std::nullopt;
    return slowest_s / steps;
  }
};

}  // namespace

std::optional<Finding> find_uneven_shard(const Evidence& evidence) {
  const Rows& rows = evidence.rows;
  if (rows.ranks() < 2) return std::nullopt;
  double uneven_steps = 0, fair_samples = 0, largest_s = 0;
  Even even;
  Uneven all_uneven;
  std::vector<Uneven> uneven_by_rank(rows.ranks());
  std::vector<double> most_of_all(rows.ranks(), 0);
  for (std::size_t i = 0; i < rows.rows().size(); ++i) {
    std::size_t most = 0;
    double sum = 0;
    for (std::size_t r = 0; r < rows.ranks(); ++r) {
      const std::int64_t samples = rows.at(i, r).samples;
      sum += static_cast<double>(samples);
      if (samples > rows.at(i, most).samples) most = r;
      most_of_all[r] += static_cast<double>(samples);
    }
    const auto largest = static_cast<double>(rows.at(i, most).samples);
    const double fair = sum / static_cast<double>(rows.ranks());
    if (largest <= fair) {
      even.add(rows, i);
      continue;
    }
    const Uneven uneven = uneven_s(rows, i, most, fair);
    all_uneven += uneven;
    fair_samples += fair;
    largest_s += static_cast<double>(compute_of(rows.at(i, most))) / 1e9;
    uneven_by_rank[most] += uneven;
    uneven_steps += static_cast<double>(rows.rows()[i].steps);
  }
  if (uneven_steps <= 0) return std::nullopt;
  const auto even_s = even.step_s(fair_samples / uneven_steps);
  const double lost_s = even_s ? largest_s - *even_s * uneven_steps : all_uneven.seconds();
  if (lost_s <= 0) return std::nullopt;
  std::vector<double> by_rank;
  for (const Uneven& uneven : uneven_by_rank) by_rank.push_back(uneven.seconds());
  Finding finding;
  finding.id = "uneven_shard";
  finding.cause = "uneven_shard";
  finding.fault = true;
  finding.seconds = lost_s;
  const auto worst = std::max_element(by_rank.begin(), by_rank.end());
  const auto at = static_cast<std::size_t>(worst - by_rank.begin());
  const bool one = *worst > 0 && *worst >= kMainShardShare * std::accumulate(by_rank.begin(), by_rank.end(), 0.0);
  const RankProfile& rank = evidence.run.ranks[at];
  if (one) {
    finding.rank = rank.rank;
    finding.host = rank.host;
  }
  double all = 0;
  for (const double samples : most_of_all) all += samples;
  finding.title =
      one ? fmt::format("{} has more data than the others: they wait while it trains, {} in all", rank_name(rank),
                        seconds_text(lost_s))
          : fmt::format("ranks train different numbers of samples in a batch: {} in all", seconds_text(lost_s));
  finding.evidence =
      fmt::format("{} each (mean) in {}; {} trained {} samples, a fair share is {}",
                  seconds_text(lost_s / uneven_steps), count_text(to_count(uneven_steps), "batch"), rank_name(rank),
                  count_text(to_count(most_of_all[at])), count_text(to_count(all / static_cast<double>(rows.ranks()))));
  if (even_s) {
    finding.evidence += fmt::format("; with even shares a batch's computing takes {} instead of {}",
                                    seconds_text(*even_s), seconds_text(largest_s / uneven_steps));
  }
  finding.advice =
      "give every rank the same number of samples: shards of one size, or a sampler over the whole data set";
  return finding;
}

}  // namespace dtrain::analysis
