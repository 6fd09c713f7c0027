#include "plan/launch_network.h"

#include <algorithm>

#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

// The hosts of the placement, as the remote shell names them; "" is this host.
std::vector<std::string> hosts_of(const LaunchPlan& plan) {
  std::vector<std::string> hosts;
  for (const scheduler::AgentShare& share : plan.placement) {
    const auto agent = std::find_if(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                                    [&](const auto& one) { return one.agent.id == share.agent; });
    if (agent != plan.cluster.agents.end()) hosts.push_back(agent->here ? "" : agent->agent.host);
  }
  return hosts;
}

}  // namespace

void settle_network(LaunchPlan& plan, const RemoteCommand& remote) {
  const std::vector<std::string> hosts = hosts_of(plan);
  if (std::all_of(hosts.begin(), hosts.end(), [](const std::string& host) { return host.empty(); })) return;
  std::string& interface = plan.cluster.cluster.network_interface;
  plan.network = choose_network({.hosts = hosts, .wanted = interface, .source = plan.cluster.source, .remote = remote});
  if (!plan.network.value().empty()) interface = plan.network.value();
  if (const std::string warning = several_networks_warning(plan.network); !warning.empty()) {
    plan.warnings.push_back(warning);
  }
}

}  // namespace dtrain::run
