// The metrics that Prometheus gets during the run.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include <poll.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "monitor/format.h"
#include "monitor/restart_totals.h"
#include "monitor/system_sampler.h"

namespace dtrain::profile {

struct CollectiveTotals {
  std::int64_t count = 0, bytes = 0, duration_ns = 0, exposed_ns = 0;
};

// Sums over one rank's work so far. One thread, the monitor's.
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

// Answers Prometheus: GET /metrics gives the last system sample of this host and the sums of its ranks so far, in the
// text format. It never waits for a peer: at most 32 connections are open, of which a new one replaces the oldest, and
// each is closed 5 s after it was accepted, whatever has been sent. One thread, the monitor's.
class PrometheusEndpoint {
 public:
  // Listens on a numeric address; port 0: any free one. `labels` go with every value. Error when it cannot listen.
  PrometheusEndpoint(const std::string& address, int port, std::map<std::string, std::string> labels,
                     const Clock& clock);

  // "127.0.0.1:9400"
  const std::string& where() const { return where_; }
  // Sets the values of later answers. Ranks that have ended stay.
  void publish(const SystemSample& sample, const std::vector<RankTotals>& ranks, const RestartTotals& restarts);

  // Adds what poll() must wait for before the next serve().
  void wait_for(std::vector<pollfd>& events) const;
  // Accepts, reads and answers as far as that is possible at once.
  void serve();

 private:
  struct Connection {
    UniqueFd fd;
    Nanoseconds deadline{};
    std::string request;
    std::string answer;  // empty: the request is not complete
    std::size_t sent = 0;
  };
  void accept_connections();
  bool goes_on(Connection& connection) const;  // false: it is done, or has failed
  std::string answer_to(const std::string& request) const;

  std::map<std::string, std::string> labels_;
  const Clock& clock_;
  UniqueFd listener_;
  std::string where_;
  std::string metrics_;                // of the last publish()
  std::list<Connection> connections_;  // the oldest first
  Nanoseconds next_accept_{0};
};

}  // namespace dtrain::profile
