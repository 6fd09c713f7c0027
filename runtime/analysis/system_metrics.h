// Everything the summary needs of one agent's dump, gathered in one pass.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

class AgentTotals final : public DumpHandler {
 public:
  void header(const Json& json) override { first_line = json; }
  void system(const SystemLine& line) override;
  void lost(std::int64_t count, const std::string&) override { lost_count += count; }
  void end(const EndLine& line) override { ended = line; }

  AgentSummary summary() const;

  std::optional<Json> first_line;
  std::optional<EndLine> ended;
  std::int64_t lost_count = 0;
  std::map<int, double> peak_resident_bytes;  // by rank

 private:
  std::int64_t samples_ = 0;
  std::vector<std::string> names_;  // in the order of the dump
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace dtrain::analysis
