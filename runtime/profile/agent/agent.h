// The agent process of a host: waits for the host's ranks, writes their records, samples the system, and exits after
// the last of them. One thread, besides the one that calls the GPUs' driver.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/dump_writer.h"
#include "agent/gpu_sampler.h"
#include "agent/prometheus_endpoint.h"
#include "agent/rank_connection.h"
#include "agent/system_sampler.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/log.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/profile/agent_process.h"

namespace dtrain::profile {

struct AgentSettings {
  AgentFacts facts;
  std::chrono::nanoseconds rank_timeout{};
  std::chrono::nanoseconds sample_period{};
  pid_t starter_pid = 0;
  std::string nvml_library;
  std::optional<PrometheusAddress> prometheus;
};

class Agent {
 public:
  Agent(AgentSettings settings, UnixListener listener, const Clock& clock, Logger logger);

  // Runs until the last rank has gone. True: all records are on disk.
  bool run();

 private:
  void wait_for_events();
  void accept_processes();
  void serve_processes();
  void remove(std::list<RankConnection>::iterator& connection);
  void drain();
  void sample();
  std::vector<RankTotals> totals() const;
  std::map<std::string, std::string> labels() const;  // of the values for Prometheus
  void report_errors();
  // Returns the reason for the agent to end; nullptr: it goes on.
  const char* reason_to_end();
  bool any_rank_connected() const;
  bool is_connected(int rank) const;

  AgentSettings settings_;
  UnixListener listener_;
  const Clock& clock_;
  Logger logger_;
  SystemSampler sampler_;
  GpuSampler gpus_;
  std::unique_ptr<PrometheusEndpoint> prometheus_;  // null: not requested
  DumpWriter dump_;
  std::list<RankConnection> connections_;
  std::map<int, RankTotals> gone_;  // ranks that have disconnected
  Nanoseconds started_at_;
  Nanoseconds last_sample_;
  Nanoseconds next_sample_;
  Nanoseconds next_drain_;
  Nanoseconds next_accept_{0};
  Nanoseconds orphaned_at_{0};
  std::uint64_t samples_ = 0;
  std::uint64_t lost_ = 0;
  bool stop_ = false;
  bool failed_ = false;    // something could not be written
  bool reported_ = false;  // to a rank
};

}  // namespace dtrain::profile
