// Memory of a rank that grows with every step: leaks and fragmentation.
#include <algorithm>
#include <map>

#include <spdlog/fmt/fmt.h>
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/statistics.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis::findings {
namespace {

// The growth of a rank's memory with every step.
struct MemoryGrowth {
  double bytes_per_step = 0;
  double grown_bytes = 0;          // in the examined steps
  double steps = 0;                // number of examined steps
  std::optional<MemoryRoom> room;  // the memory left at the end, of its host or of a cgroup's limit
  double host_bytes_per_step = 0;  // of all ranks of its host that grow, because they share the memory left
  double free_heap_bytes = 0;      // the part of grown_bytes that is free on malloc's heap: fragmentation
  double steps_left() const { return room && host_bytes_per_step > 0 ? room->free / host_bytes_per_step : 0; }
};

constexpr double kSkipped = 0.25;  // of the steps
constexpr std::size_t kLeastPoints = 8;
constexpr std::size_t kGrowthParts = 4;
constexpr double kLeastBytes = 4.0 * (1 << 20);  // grown in all; an allocator alone may grow by less
constexpr double kRisingPairs = 0.85;
constexpr double kLeastPart = 0.4;  // of the mean growth between parts

using Points = std::vector<std::pair<double, double>>;  // steps from the first one on, bytes

std::int64_t first_batch(const RankProfile& rank) {
  std::int64_t first = rank.steps.empty() ? INT64_MAX : rank.steps.front().batch;
  return rank.windows.empty() ? first : std::min(first, rank.windows.front().first_batch);
}

// Returns the points of the loop without its first part. The rank's own samples name the step. The monitor's samples
// have only the time; the steps are assumed to have equal durations.
Points of_rank(const RunProfile& run, const RankProfile& rank, double steps) {
  Points points;
  const auto add = [&](double step, double bytes) {
    if (step >= kSkipped * steps && step <= steps) points.emplace_back(step, bytes);
  };
  for (const MemoryLine& line : rank.memory) {
    const std::int64_t bytes = line.anonymous_bytes > 0 ? line.anonymous_bytes : line.resident_bytes;
    add(static_cast<double>(line.batch - first_batch(rank) + 1), static_cast<double>(bytes));
  }
  const MonitorProfile* const monitor = run.monitor_of(rank);
  const auto loop = rank.loop();
  if (points.size() >= kLeastPoints || monitor == nullptr || !loop || loop->second <= loop->first) return points;
  points.clear();
  for (const SystemLine& sample : monitor->samples) {
    for (const ProcessLine& process : sample.processes) {
      if (process.rank != rank.rank || process.resident_bytes <= 0) continue;
      const double part =
          static_cast<double>(sample.time_ns - loop->first) / static_cast<double>(loop->second - loop->first);
      add(part * steps, process.resident_bytes);
    }
  }
  return points;
}

// Returns the growth of the free part of malloc's heap from the first to the last examined step; 0: not recorded.
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

// Returns the memory limit with the least free memory, which will be full first.
std::optional<MemoryRoom> memory_left(const MonitorProfile* monitor) {
  if (monitor == nullptr || monitor->samples.empty()) return std::nullopt;
  const std::vector<MemoryRoom> rooms = memory_rooms(*monitor, monitor->samples.back());
  const auto least = std::ranges::min_element(rooms, {}, &MemoryRoom::free);
  return least == rooms.end() ? std::nullopt : std::optional(*least);
}

// True if the memory grows by about as much in each part.
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

// Finds the growth after the first quarter of the run, in which buffers and caches are filled. Empty: memory does not
// grow steadily, which means by a like amount in each part of the rest and in most pairs of samples.
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
  growth.room = memory_left(run.monitor_of(rank));
  growth.free_heap_bytes = growth_of_free_heap(rank, steps);
  return growth;
}

std::string growth_text(const MemoryGrowth& growth) {
  std::string text = fmt::format("its memory grew by {} in {} steps, and steadily", format_bytes(growth.grown_bytes),
                                 count_text(to_count(growth.steps)));
  if (growth.room && growth.steps_left() > 0) {
    text += fmt::format("; the {} that {} has left last for {} more steps", format_bytes(growth.room->free),
                        growth.room->of_cgroup ? "the limit of " + growth.room->whose : growth.room->whose,
                        count_text(to_count(growth.steps_left())));
  }
  return text;
}

Finding growth_finding(const std::string& who, const MemoryGrowth& growth) {
  const std::string a_step = format_bytes(growth.bytes_per_step);
  Finding finding{.title = fmt::format("{} keeps {} more memory with every step", who, a_step),
                  .evidence = growth_text(growth),
                  .advice =
                      "look for what the program holds on to between steps: tensors kept with their graphs (detach "
                      "or item() what is logged), lists and caches that only grow",
                  .fault = true,
                  .bytes_per_step = growth.bytes_per_step};
  const bool is_fragmented = growth.free_heap_bytes > 0.5 * growth.grown_bytes;
  if (!is_fragmented) return finding;
  finding.id = "memory_fragmentation";
  finding.title = fmt::format("the heap of {} is fragmented: it grows by {} with every step", who, a_step);
  finding.evidence += fmt::format("; {} of that is free, between pieces that are in use, and nothing fits there",
                                  format_bytes(std::min(growth.free_heap_bytes, growth.grown_bytes)));
  finding.advice =
      "allocate what lives long before the first step, or give the ranks another allocator: install jemalloc and set "
      "environment.environment_variables: [LD_PRELOAD=libjemalloc.so.2]";
  return finding;
}

}  // namespace

std::vector<Finding> find_leaks(const Run& run) {
  const auto& ranks = run.evidence.run.ranks;
  std::map<std::size_t, MemoryGrowth> growths;  // by index of the rank
  std::map<std::string, double> of_hosts;       // bytes a step of all ranks of a host, by its agent
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto growth = find_growth(run.evidence.run, ranks[r]);
    if (!growth) continue;
    growths[r] = *growth;
    of_hosts[ranks[r].agent] += growth->bytes_per_step;
  }
  std::vector<Finding> found;
  MemoryGrowth all;
  for (auto& [r, growth] : growths) {
    growth.host_bytes_per_step = of_hosts[ranks[r].agent];
    found.push_back(growth_finding(rank_name(ranks[r]), growth));
    found.back().rank = ranks[r].rank;
    found.back().host = ranks[r].host;
    all.bytes_per_step += growth.bytes_per_step;
    all.grown_bytes += growth.grown_bytes;
    all.free_heap_bytes += growth.free_heap_bytes;
    all.steps = std::max(all.steps, growth.steps);
    if (growth.room && (!all.room || growth.steps_left() < all.steps_left())) {
      all.room = growth.room;
      all.host_bytes_per_step = growth.host_bytes_per_step;
    }
  }
  if (found.size() < 2 || 2 * found.size() <= ranks.size()) return found;
  const auto count = static_cast<double>(found.size());
  all.bytes_per_step /= count;
  all.grown_bytes /= count;
  all.free_heap_bytes /= count;
  const std::string who = found.size() == ranks.size() ? "each rank" : fmt::format("each of {} ranks", found.size());
  return {growth_finding(who, all)};
}

}  // namespace dtrain::analysis::findings
