#include "report/charts.h"

#include <algorithm>
#include <map>

#include "measure/system_metrics.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kUtilBins = 20;

const double* find(const Metrics& metrics, const std::string& name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& pair) { return pair.first == name; });
  return found == metrics.end() ? nullptr : &found->second;
}

// Returns a rank of the agent's host, because choosing a rank shows its host's line.
int first_rank_of(const Input& input, const AgentProfile& agent) {
  for (const RankProfile* rank : input.drawn()) {
    if (rank->agent == agent.agent) return rank->rank;
  }
  return -1;
}

// Limits the axis of percent to a quarter if all values are small; otherwise it shows 100%.
Json with_range(Json spec) {
  if (spec.is_null() || spec["y"]["unit"] != "percent") return spec;
  double highest = 0;
  for (const Json& set : spec["sets"]) {
    for (const Json& value : set["y"]) highest = std::max(highest, value.get<double>());
  }
  spec["y"]["max"] = highest > 25 ? 100 : 25;
  return spec;
}

}  // namespace

Json host_series(const Input& input, const std::vector<MetricLine>& metrics, const std::string& title,
                 const std::string& unit) {
  Json spec = time_series(input, title, unit);
  const std::vector<AgentProfile>& agents = input.run.agents;
  const std::size_t columns = Input::columns(agents.size() * metrics.size() * 2, kMostPoints);
  std::vector<Point> all;
  for (std::size_t i = 0; i < std::min(agents.size(), kMostRanks); ++i) {
    for (const MetricLine& metric : metrics) {
      std::vector<Point> points;
      for (const SystemLine& sample : agents[i].samples) {
        const double* value = find(sample.metrics, metric.metric);
        if (value) points.push_back(point(input.seconds(agents[i], sample.time_ns), *value));
      }
      if (points.empty()) continue;
      points = thin(std::move(points), columns);
      all.insert(all.end(), points.begin(), points.end());
      const std::string name = agents.size() == 1 ? metric.words : host_name(agents[i]) + ": " + metric.words;
      Json set = line_set(name, points, false);
      if (const int rank = first_rank_of(input, agents[i]); rank >= 0) set["rank"] = rank;
      spec["sets"].push_back(std::move(set));
    }
  }
  return with_range(few_lines(std::move(spec), std::move(all), "hosts"));
}

Json gpu_series(const Input& input, const std::string& metric, const std::string& title, const std::string& unit,
                bool of_total) {
  Json spec = time_series(input, title, unit);
  std::size_t count = 0;
  for (const AgentProfile& agent : input.run.agents) count += agent.gpus.size();
  const std::size_t columns = Input::columns(count * 2, kMostPoints);
  std::vector<Point> all;
  for (const AgentProfile& agent : input.run.agents) {
    std::map<std::int64_t, std::vector<Point>> gpus;
    const auto ranks = ranks_by_gpu(input.run, agent);
    std::map<std::int64_t, double> totals;
    for (const GpuLine& gpu : agent.gpus) totals[gpu.index] = static_cast<double>(gpu.total_memory_bytes);
    for (const SystemLine& sample : agent.samples) {
      for (const auto& [index, values] : sample.gpus) {
        const double* value = find(values, metric);
        if (ranks && !ranks->contains(index)) continue;
        if (!value || (of_total && totals[index] <= 0)) continue;
        const double shown = of_total ? 100 * (1 - *value / totals[index]) : *value;
        gpus[index].push_back(point(input.seconds(agent, sample.time_ns), shown));
      }
    }
    for (auto& [index, points] : gpus) {
      if (spec["sets"].size() >= kMostRanks) break;
      points = thin(std::move(points), columns);
      all.insert(all.end(), points.begin(), points.end());
      Json set = line_set(host_name(agent) + " GPU " + std::to_string(index), points, false);
      const int rank = ranks ? ranks->at(index) : first_rank_of(input, agent);
      if (rank >= 0) set["rank"] = rank;
      spec["sets"].push_back(std::move(set));
    }
  }
  return with_range(few_lines(std::move(spec), std::move(all), "GPUs"));
}

Json gpu_histogram(const Input& input) {
  Json spec = {{"kind", "histogram"},
               {"x0", 0},
               {"dx", 100.0 / kUtilBins},
               {"x", {{"title", "utilization"}, {"unit", "percent"}}},
               {"y", {{"title", "share of the samples"}, {"unit", "share"}}},
               {"sets", Json::array()}};
  for (const AgentProfile& agent : input.run.agents) {
    std::map<std::int64_t, Histogram> gpus;
    std::map<std::int64_t, std::int64_t> samples;
    const auto ranks = ranks_by_gpu(input.run, agent);
    for (const SystemLine& sample : agent.samples) {
      for (const auto& [index, values] : sample.gpus) {
        const double* value = find(values, "gpu_util");
        if (!value || (ranks && !ranks->contains(index))) continue;
        gpus.try_emplace(index, 0, 100.0001, kUtilBins).first->second.add(*value);
        ++samples[index];
      }
    }
    for (const auto& [index, histogram] : gpus) {
      if (spec["sets"].size() >= kMostRanks) break;
      std::vector<double> shares;
      for (const std::int64_t bin : histogram.counts()) {
        shares.push_back(static_cast<double>(bin) / static_cast<double>(samples[index]));
      }
      spec["sets"].push_back({{"name", host_name(agent) + " GPU " + std::to_string(index)}, {"y", rounded(shares)}});
    }
  }
  if (spec["sets"].empty()) return nullptr;
  return spec;
}

Json rank_gpu_memory_series(const Input& input) {
  return lines_of_ranks(input, "reserved memory", "bytes", kMostPoints, [&](const RankProfile& rank) {
    std::vector<Point> points;
    for (const DeviceMemoryLine& line : rank.device_memory) {
      points.push_back(point(input.seconds(rank, line.time_ns), static_cast<double>(line.reserved_bytes)));
    }
    return points;
  });
}

Json rank_memory_series(const Input& input) {
  return lines_of_ranks(input, "resident memory", "bytes", kMostPoints, [&](const RankProfile& rank) {
    std::vector<Point> points;
    for (const MemoryLine& line : rank.memory) {
      points.push_back(point(input.seconds(rank, line.time_ns), static_cast<double>(line.resident_bytes)));
    }
    const AgentProfile* agent = points.empty() ? input.run.agent_of(rank) : nullptr;
    for (std::size_t i = 0; agent && i < agent->samples.size(); ++i) {
      for (const ProcessLine& process : agent->samples[i].processes) {
        if (process.rank != rank.rank) continue;
        points.push_back(point(input.seconds(*agent, agent->samples[i].time_ns), process.resident_bytes));
      }
    }
    return points;
  });
}

}  // namespace dtrain::analysis::report
