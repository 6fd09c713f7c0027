#include "system_metrics.h"

#include <algorithm>

#include "json_fields.h"
#include "statistics.h"

namespace dtrain::analysis {

void MetricValues::add(const Metrics& metrics) {
  for (const auto& [name, value] : metrics) {
    auto [entry, is_new] = values_.try_emplace(name);
    if (is_new) names_.push_back(name);
    entry->second.push_back(value);
  }
}

std::vector<MetricSummary> MetricValues::summary(const Json& units) const {
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

void AgentTotals::lost(std::int64_t count, const std::string&) {
  add_to(lost_count, count);
}

void AgentTotals::system(const SystemLine& line) {
  ++samples_;
  values_.add(line.metrics);
  for (const auto& [index, metrics] : line.gpus) gpu_values_[index].add(metrics);
  for (const ProcessLine& process : line.processes) {
    double& peak = peak_resident_bytes[process.rank];
    peak = std::max(peak, process.resident_bytes);
  }
}

AgentSummary AgentTotals::summary() const {
  AgentSummary summary;
  const Json header = first_line.value_or(Json::object());
  summary.agent = text(header, "agent");
  summary.host = text(header, "host");
  summary.samples = samples_;
  const auto found = header.find("units");
  const Json units = found != header.end() && found->is_object() ? *found : Json::object();
  summary.metrics = values_.summary(units);
  for (const auto& [index, values] : gpu_values_) {
    const auto known = gpus_.find(index);
    const GpuLine gpu = known != gpus_.end() ? known->second : GpuLine{};
    summary.gpus.push_back({index, gpu.uuid, gpu.name, gpu.total_memory_bytes, values.summary(units)});
  }
  return summary;
}

}  // namespace dtrain::analysis
