#include "measure/system_metrics.h"

#include <algorithm>
#include <map>

#include "measure/gpus_of_ranks.h"
#include "measure/statistics.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

// Metrics by name, in the order in which they came.
class MetricValues {
 public:
  void add(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      auto [entry, is_new] = values_.try_emplace(name);
      if (is_new) names_.push_back(name);
      entry->second.push_back(value);
    }
  }

  std::vector<MetricSummary> summary(const Json& units) const {
    std::vector<MetricSummary> result;
    for (const std::string& name : names_) {
      std::vector<double> values = values_.at(name);
      MetricSummary metric;
      metric.name = name;
      metric.unit = text(units, name);
      metric.mean = mean(values);
      metric.min = *std::min_element(values.begin(), values.end());
      metric.max = *std::max_element(values.begin(), values.end());
      metric.p50 = quantile(values, 0.50);
      metric.p95 = quantile(values, 0.95);
      metric.p99 = quantile(values, 0.99);
      result.push_back(std::move(metric));
    }
    return result;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace

AgentSummary summarize_agent(const RunProfile& run, const AgentProfile& agent) {
  MetricValues values;
  std::map<std::int64_t, MetricValues> gpu_values;
  std::map<std::int64_t, GpuLine> gpus;
  for (const GpuLine& gpu : agent.gpus) gpus[gpu.index] = gpu;
  for (const SystemLine& sample : agent.samples) {
    values.add(sample.metrics);
    for (const auto& [index, metrics] : sample.gpus) gpu_values[index].add(metrics);
  }
  AgentSummary summary;
  summary.agent = agent.agent;
  summary.host = agent.host;
  summary.samples = static_cast<std::int64_t>(agent.samples.size());
  const auto found = agent.header.find("units");
  const Json units = found != agent.header.end() && found->is_object() ? *found : Json::object();
  summary.metrics = values.summary(units);
  const bool on_gpus = trains_on_gpus(run);
  const auto ranks = ranks_by_gpu(run, agent);
  for (const auto& [index, of_gpu] : gpu_values) {
    const auto known = gpus.find(index);
    const GpuLine gpu = known != gpus.end() ? known->second : GpuLine{};
    GpuSummary& one = summary.gpus.emplace_back();
    one = {index, gpu.uuid, gpu.name, gpu.total_memory_bytes, of_gpu.summary(units)};
    one.is_of_run = on_gpus && (!ranks || ranks->contains(index));
    if (on_gpus && ranks && ranks->contains(index)) one.rank = ranks->at(index);
  }
  return summary;
}

}  // namespace dtrain::analysis
