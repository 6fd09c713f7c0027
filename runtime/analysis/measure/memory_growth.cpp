#include "measure/memory_growth.h"

#include <algorithm>

#include "measure/contention.h"
#include "measure/statistics.h"

namespace dtrain::analysis {
namespace {

constexpr double kSkipped = 0.25;  // of the steps
constexpr std::size_t kLeastPoints = 8;
constexpr std::size_t kGrowthParts = 4;
constexpr double kLeastBytes = 4.0 * (1 << 20);  // grown in all: less is an allocator's own
constexpr double kRisingPairs = 0.85;
constexpr double kLeastPart = 0.4;  // of the mean growth between parts

using Points = std::vector<std::pair<double, double>>;  // steps from the first one on, bytes

std::int64_t first_batch(const RankProfile& rank) {
  std::int64_t first = rank.steps.empty() ? INT64_MAX : rank.steps.front().batch;
  return rank.windows.empty() ? first : std::min(first, rank.windows.front().first_batch);
}

// Of the loop, without the first part of it. The rank's own samples name the step; the agent's samples have only the
// time, and steps are assumed to have come evenly.
Points of_rank(const RunProfile& run, const RankProfile& rank, double steps) {
  Points points;
  const auto add = [&](double step, double bytes) {
    if (step >= kSkipped * steps && step <= steps) points.emplace_back(step, bytes);
  };
  for (const MemoryLine& line : rank.memory) {
    const std::int64_t bytes = line.anonymous_bytes > 0 ? line.anonymous_bytes : line.resident_bytes;
    add(static_cast<double>(line.batch - first_batch(rank) + 1), static_cast<double>(bytes));
  }
  const AgentProfile* const agent = run.agent_of(rank);
  const auto loop = rank.loop();
  if (points.size() >= kLeastPoints || agent == nullptr || !loop || loop->second <= loop->first) return points;
  points.clear();
  for (const SystemLine& sample : agent->samples) {
    for (const ProcessLine& process : sample.processes) {
      if (process.rank != rank.rank || process.resident_bytes <= 0) continue;
      const double part =
          static_cast<double>(sample.time_ns - loop->first) / static_cast<double>(loop->second - loop->first);
      add(part * steps, process.resident_bytes);
    }
  }
  return points;
}

// By how much the free part of malloc's heap grew from the first of the steps looked at to the last; 0: not recorded.
double growth_of_free_heap(const RankProfile& rank, double steps) {
  Points points;
  for (const MemoryLine& line : rank.memory) {
    const auto step = static_cast<double>(line.batch - first_batch(rank) + 1);
    if (line.free_heap_bytes < 0 || step < kSkipped * steps || step > steps) continue;
    points.emplace_back(step, static_cast<double>(line.free_heap_bytes));
  }
  if (points.size() < kLeastPoints) return 0;
  return std::max(0.0, theil_sen(points).slope * (points.back().first - points.front().first));
}

std::optional<double> free_memory(const AgentProfile* agent) {
  if (agent == nullptr || agent->samples.empty()) return std::nullopt;
  for (const auto& [name, value] : agent->samples.back().metrics) {
    if (name == "free_memory") return value;
  }
  return std::nullopt;
}

// Steady: in each part about as much.
bool is_steady(const Points& points) {
  std::vector<double> middles;
  for (std::size_t part = 0; part < kGrowthParts; ++part) {
    std::vector<double> values;
    for (std::size_t i = part * points.size() / kGrowthParts; i < (part + 1) * points.size() / kGrowthParts; ++i) {
      values.push_back(points[i].second);
    }
    middles.push_back(quantile(values, 0.5));
  }
  const double mean_growth = (middles.back() - middles.front()) / static_cast<double>(kGrowthParts - 1);
  for (std::size_t part = 1; part < kGrowthParts; ++part) {
    if (middles[part] - middles[part - 1] < kLeastPart * mean_growth) return false;
  }
  return mean_growth > 0;
}

}  // namespace

std::optional<MemoryGrowth> find_growth(const RunProfile& run, const RankProfile& rank) {
  const auto steps = static_cast<double>(rank.step_count());
  if (steps <= 0) return std::nullopt;
  const Points points = of_rank(run, rank, steps);
  if (points.size() < kLeastPoints || !is_steady(points)) return std::nullopt;
  const Trend trend = theil_sen(points);
  MemoryGrowth growth;
  growth.steps = points.back().first - points.front().first;
  growth.grown_bytes = trend.slope * growth.steps;
  if (growth.grown_bytes < kLeastBytes || trend.rising < kRisingPairs) return std::nullopt;
  growth.bytes_per_step = trend.slope;
  growth.free_bytes = free_memory(run.agent_of(rank));
  growth.free_heap_bytes = growth_of_free_heap(rank, steps);
  return growth;
}

}  // namespace dtrain::analysis
