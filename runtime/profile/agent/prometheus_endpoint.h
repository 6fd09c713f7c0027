// Answers Prometheus: GET /metrics gives the last system sample of this host and the sums of its ranks so far. The
// library (prometheus-cpp) answers on threads of its own and reads a copy, so a request never delays the agent. The
// public functions are for the agent's thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/rank_totals.h"
#include "agent/system_sampler.h"

namespace dtrain::profile {

class PrometheusEndpoint {
 public:
  // Listens on a numeric address; port 0: any free one. `labels` go with every value. Error when it cannot listen.
  PrometheusEndpoint(const std::string& address, int port, const std::map<std::string, std::string>& labels);
  ~PrometheusEndpoint();
  PrometheusEndpoint(const PrometheusEndpoint&) = delete;
  PrometheusEndpoint& operator=(const PrometheusEndpoint&) = delete;

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
