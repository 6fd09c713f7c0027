#include "memory_growth.h"

#include <algorithm>

#include "contention.h"
#include "statistics.h"

namespace dtrain::analysis {
namespace {

constexpr double kSkipped = 0.25;  // of the loop
constexpr std::size_t kLeastPoints = 8;
constexpr std::size_t kParts = 4;
constexpr double kLeastBytes = 4.0 * (1 << 20);  // grown in all: less is an allocator's own
constexpr double kRisingPairs = 0.85;
constexpr double kLeastPart = 0.4;  // of the mean growth between parts

using Points = std::vector<std::pair<double, double>>;  // time in seconds, bytes

Points of_rank(const RunProfile& run, const RankProfile& rank) {
  Points points;
  for (const MemoryLine& line : rank.memory) {
    const std::int64_t bytes = line.anonymous_bytes > 0 ? line.anonymous_bytes : line.resident_bytes;
    points.emplace_back(static_cast<double>(line.time_ns) / 1e9, static_cast<double>(bytes));
  }
  const AgentProfile* const agent = run.agent_of(rank);
  if (points.size() >= kLeastPoints || agent == nullptr) return points;
  points.clear();
  for (const SystemLine& sample : agent->samples) {
    for (const ProcessLine& process : sample.processes) {
      if (process.rank != rank.rank || process.resident_bytes <= 0) continue;
      points.emplace_back(static_cast<double>(sample.time_ns) / 1e9, process.resident_bytes);
    }
  }
  return points;
}

std::optional<double> free_memory(const AgentProfile* agent) {
  if (agent == nullptr || agent->samples.empty()) return std::nullopt;
  for (const auto& [name, value] : agent->samples.back().metrics) {
    if (name == "free_memory") return value;
  }
  return std::nullopt;
}

// Steady: in each part of the time about as much.
bool is_steady(const Points& points) {
  std::vector<double> middles;
  for (std::size_t part = 0; part < kParts; ++part) {
    std::vector<double> values;
    for (std::size_t i = part * points.size() / kParts; i < (part + 1) * points.size() / kParts; ++i) {
      values.push_back(points[i].second);
    }
    middles.push_back(quantile(values, 0.5));
  }
  const double mean_growth = (middles.back() - middles.front()) / static_cast<double>(kParts - 1);
  for (std::size_t part = 1; part < kParts; ++part) {
    if (middles[part] - middles[part - 1] < kLeastPart * mean_growth) return false;
  }
  return mean_growth > 0;
}

}  // namespace

std::optional<MemoryGrowth> find_growth(const RunProfile& run, const RankProfile& rank) {
  const auto loop = loop_of(rank);
  const auto steps = static_cast<double>(rank.step_count());
  if (!loop || steps <= 0) return std::nullopt;
  const double begin_s = static_cast<double>(loop->first) / 1e9;
  const double end_s = static_cast<double>(loop->second) / 1e9;
  Points points = of_rank(run, rank);
  std::erase_if(points, [&](const auto& point) {
    return point.first < begin_s + kSkipped * (end_s - begin_s) || point.first > end_s;
  });
  if (points.size() < kLeastPoints || !is_steady(points)) return std::nullopt;
  const Trend trend = theil_sen(points);
  const double seconds = points.back().first - points.front().first;
  MemoryGrowth growth;
  growth.grown_bytes = trend.slope * seconds;
  if (growth.grown_bytes < kLeastBytes || trend.rising < kRisingPairs) return std::nullopt;
  growth.steps = steps * seconds / (end_s - begin_s);
  growth.bytes_per_step = growth.grown_bytes / growth.steps;
  growth.free_bytes = free_memory(run.agent_of(rank));
  return growth;
}

}  // namespace dtrain::analysis
