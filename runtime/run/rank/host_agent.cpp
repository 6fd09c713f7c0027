#include "rank/host_agent.h"

namespace dtrain::run {

std::string share_agent(comm::ControlPlane& control, const std::string& host_key, const profile::AgentOptions& options,
                        const Clock& clock, std::unique_ptr<profile::KeptAgent>& agent) {
  const std::string key = "run.agent/" + host_key;
  if (control.world().local_rank != 0) return control.get(key);
  agent = std::make_unique<profile::KeptAgent>(options, clock);
  control.set(key, agent->socket());
  return agent->socket();
}

}  // namespace dtrain::run
