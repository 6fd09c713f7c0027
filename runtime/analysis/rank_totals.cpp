#include "rank_totals.h"

#include <algorithm>
#include <numeric>

#include "json_fields.h"

namespace dtrain::analysis {

using profile::Phase;

namespace {

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}
constexpr std::size_t index_of(Phase phase) {
  return static_cast<std::size_t>(phase);
}

}  // namespace

void RankTotals::header(const Json& json) {
  first_line = json;
  ended.reset();  // a later attempt in the same file
}

void RankTotals::step(const StepLine& line) {
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) phase_seconds[i].push_back(seconds(line.phases[i]));
  train_batch_seconds.push_back(seconds(line.phases[index_of(Phase::kTrainBatch)] +
                                        line.phases[index_of(Phase::kForward)] +
                                        line.phases[index_of(Phase::kBackward)]));
  wall_seconds.push_back(seconds(line.wall_ns));
  wall_sum_s += seconds(line.wall_ns);
  add_to(samples, line.samples);
  if (line.exchanged) waits.push_back({line.batch, line.phases[index_of(Phase::kAllreduceWait)]});
  if (!first_start_ns_) first_start_ns_ = line.start_ns;
  last_end_ns_ = std::max(last_end_ns_, line.start_ns + line.wall_ns);
}

void RankTotals::collective(const CollectiveLine& line) {
  CollectiveTotals& totals = collectives[{std::string(name_of(line.operation)), line.bucket}];
  ++totals.count;
  add_to(totals.bytes, line.bytes);
  totals.exposed_s += seconds(line.exposed_ns);
  totals.seconds.push_back(seconds(line.ended_ns - line.started_ns));
  totals.bus_bandwidth.push_back(line.bus_bandwidth);
}

void RankTotals::part(const PartLine& line) {
  parts_s[line.part] += seconds(line.end_ns - line.start_ns);
}

void RankTotals::loader(const LoaderLine& line) {
  ++loader_records;
  add_to(loader_queue_sum, line.queue_depth);
  if (line.queue_depth == 0) ++loader_empty;
}

void RankTotals::dropped(std::int64_t count) {
  add_to(dropped_count, count);
}

void RankTotals::lost(std::int64_t count, const std::string& reason) {
  add_to(lost_count, count);
  lost_reason = reason;
}

std::optional<double> RankTotals::loop_s() const {
  if (const auto marked = parts_s.find("loop"); marked != parts_s.end()) return marked->second;
  if (!first_start_ns_) return std::nullopt;
  return seconds(last_end_ns_ - *first_start_ns_);
}

double RankTotals::phase_s(Phase phase) const {
  const auto& values = phase_seconds[index_of(phase)];
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace dtrain::analysis
