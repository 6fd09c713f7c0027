// Everything the summary needs of one agent's dump, gathered in one pass.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

// Metrics by name, in the order in which they came.
class MetricValues {
 public:
  void add(const Metrics& metrics);
  std::vector<MetricSummary> summary(const Json& units) const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> values_;
};

class AgentTotals final : public DumpHandler {
 public:
  void header(const Json& json) override { first_line = json; }
  void system(const SystemLine& line) override;
  void gpu(const GpuLine& line) override { gpus_[line.index] = line; }
  void lost(std::int64_t count, const std::string&) override;
  void end(const EndLine& line) override { ended = line; }

  AgentSummary summary() const;

  std::optional<Json> first_line;
  std::optional<EndLine> ended;
  std::int64_t lost_count = 0;
  std::map<int, double> peak_resident_bytes;  // by rank

 private:
  std::int64_t samples_ = 0;
  MetricValues values_;
  std::map<std::int64_t, GpuLine> gpus_;
  std::map<std::int64_t, MetricValues> gpu_values_;
};

}  // namespace dtrain::analysis
