#include "rank/host_agent.h"

namespace dtrain::run {

std::string share_agent(comm::ControlPlane& control, const std::string& host_key, const profile::AgentOptions& options,
                        const std::function<void(pid_t)>& started) {
  const std::string key = "run.agent/" + host_key;
  if (control.world().local_rank != 0) return control.get(key);
  profile::AgentProcess agent = profile::start_agent(options);
  started(agent.process.pid());
  agent.process.detach();
  control.set(key, agent.socket);
  return agent.socket;
}

}  // namespace dtrain::run
