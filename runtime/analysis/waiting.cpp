#include "waiting.h"

#include <unordered_map>

namespace dtrain::analysis {
namespace {

struct StepWaits {
  std::size_t ranks = 0;
  double sum_ns = 0;
  std::int64_t min_ns = 0, max_ns = 0;
  std::size_t last_rank = 0;  // that came last
  std::size_t newest_rank = 0;
};

}  // namespace

WaitSummary compare_waits(std::span<const std::vector<ExchangeWait>> ranks) {
  WaitSummary result;
  result.ranks.resize(ranks.size());
  if (ranks.size() < 2) return result;
  std::unordered_map<std::int64_t, StepWaits> steps;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const ExchangeWait& wait : ranks[rank]) {
      StepWaits& step = steps[wait.batch];
      if (step.ranks > 0 && step.newest_rank == rank) continue;  // a batch done twice counts once
      if (step.ranks == 0 || wait.wait_ns < step.min_ns) {
        step.min_ns = wait.wait_ns;
        step.last_rank = rank;
      }
      if (step.ranks == 0 || wait.wait_ns > step.max_ns) step.max_ns = wait.wait_ns;
      step.sum_ns += static_cast<double>(wait.wait_ns);
      step.newest_rank = rank;
      ++step.ranks;
    }
  }
  const auto count = static_cast<double>(ranks.size());
  for (const auto& [batch, step] : steps) {
    if (step.ranks != ranks.size()) continue;
    ++result.compared_steps;
    if (step.max_ns == step.min_ns) continue;
    const double beyond_ns = step.sum_ns - count * static_cast<double>(step.min_ns);
    ++result.ranks[step.last_rank].steps;
    result.ranks[step.last_rank].seconds += beyond_ns / (count - 1) / 1e9;
    result.skew_seconds += beyond_ns / count / 1e9;
  }
  return result;
}

}  // namespace dtrain::analysis
