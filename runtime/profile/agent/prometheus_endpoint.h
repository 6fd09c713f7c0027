// The metrics that Prometheus gets during the run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/format.h"
#include "agent/system_sampler.h"

namespace dtrain::profile {

struct CollectiveTotals {
  std::int64_t count = 0, bytes = 0, duration_ns = 0, exposed_ns = 0;
};

// Sums over one rank's work so far. One thread, the agent's.
struct RankTotals {
  int rank = 0;
  std::int64_t batch = 0, epoch = 0;  // of the last step
  std::int64_t last_step_ns = 0;
  std::int64_t steps = 0, samples = 0, optimizer_steps = 0, wall_ns = 0;
  PhaseTimes phases{};                                  // exclusive, as recorded
  std::map<std::string, CollectiveTotals> collectives;  // by operation
  std::uint64_t dropped = 0, lost = 0;

  void add(const Record& record);
};

inline void RankTotals::add(const Record& record) {
  if (record.kind == RecordKind::kCollective) {
    CollectiveTotals& totals = collectives[operation_of(record.collective)];
    ++totals.count;
    totals.bytes += static_cast<std::int64_t>(record.collective.bytes);
    totals.duration_ns += record.collective.ended_ns - record.collective.started_ns;
    totals.exposed_ns += record.collective.exposed_ns;
  }
  if (record.kind != RecordKind::kStep) return;
  batch = record.batch;
  epoch = record.step.epoch;
  last_step_ns = record.step.wall_ns;
  ++steps;
  samples += record.step.samples;
  optimizer_steps += record.step.exchanged != 0 ? 1 : 0;
  wall_ns += record.step.wall_ns;
  for (std::size_t i = 0; i < kPhaseCount; ++i) phases[i] += record.step.phases[i];
}

// Answers Prometheus: GET /metrics gives the last system sample of this host and the sums of its ranks so far. The
// library (prometheus-cpp) answers on threads of its own and reads a copy, so a request never delays the agent. The
// public functions are for the agent's thread.
class PrometheusEndpoint {
 public:
  // Listens on a numeric address; port 0: any free one. `labels` go with every value. Error when it cannot listen.
  PrometheusEndpoint(const std::string& address, int port, const std::map<std::string, std::string>& labels);
  ~PrometheusEndpoint();
  PrometheusEndpoint& operator=(PrometheusEndpoint&&) = delete;

  // "127.0.0.1:9400"
  const std::string& where() const { return where_; }
  // Sets the values of later answers. Ranks that have ended stay.
  void publish(const SystemSample& sample, const std::vector<RankTotals>& ranks);

 private:
  class Values;
  class Server;
  std::shared_ptr<Values> values_;
  std::unique_ptr<Server> server_;
  std::string where_;
};

}  // namespace dtrain::profile
