// Everything the summary needs of one rank's dump, gathered in one pass.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "waiting.h"

namespace dtrain::analysis {

struct CollectiveTotals {
  std::int64_t count = 0, bytes = 0;
  double exposed_s = 0;
  std::vector<double> seconds, bus_bandwidth;
};

class RankTotals final : public DumpHandler {
 public:
  explicit RankTotals(int number) : rank(number) {}

  void header(const Json& json) override;
  void step(const StepLine& line) override;
  void collective(const CollectiveLine& line) override;
  void part(const PartLine& line) override;
  void loader(const LoaderLine& line) override;
  void lost(std::int64_t count, const std::string& reason) override;
  void dropped(std::int64_t count) override;
  void end(const EndLine& line) override { ended = line; }

  // The loop as marked, else from the first step to the end of the last.
  std::optional<double> loop_s() const;
  double phase_s(profile::Phase phase) const;

  int rank = 0;
  std::optional<Json> first_line;
  std::array<std::vector<double>, profile::kPhaseCount> phase_seconds;  // a value a step, exclusive
  std::vector<double> train_batch_seconds;                              // … with its parts
  std::vector<double> wall_seconds;
  double wall_sum_s = 0;
  std::int64_t samples = 0;
  std::vector<ExchangeWait> waits;
  std::map<std::string, double> parts_s;
  std::map<std::pair<std::string, std::int64_t>, CollectiveTotals> collectives;
  std::int64_t loader_records = 0, loader_empty = 0, loader_queue_sum = 0;
  std::int64_t dropped_count = 0, lost_count = 0;
  std::string lost_reason;
  std::optional<EndLine> ended;

 private:
  std::optional<std::int64_t> first_start_ns_;
  std::int64_t last_end_ns_ = 0;
};

}  // namespace dtrain::analysis
