#include "launch/job_setup.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include "dtrain/base/file.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/reachable_address.h"
#include "folder/host_folder.h"

namespace dtrain::run {
namespace {

constexpr auto kAgentPatience = std::chrono::seconds(5);

}  // namespace

bool is_on_one_host(const LaunchPlan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(),
                     [&](const RankPlacement& rank) { return rank.host == plan.host; });
}

LaunchOrders orders_for(const Attempt& attempt) {
  const std::string token = random_hex(16);
  mark_folder(attempt.folder, token);
  LaunchOrders orders{.run_dir = attempt.folder.path,
                      .token = token,
                      .plan = read_file(attempt.folder.plan()),
                      .experiment = read_file(attempt.folder.experiment()),
                      .resume_from = attempt.resume.path};
  for (const RankPlacement& rank : attempt.plan.ranks) orders.agents.push_back(rank.agent);
  return orders;
}

std::string listening_address(const LaunchPlan& plan) {
  if (is_on_one_host(plan)) return "127.0.0.1";
  const std::string& network = plan.cluster.cluster.network_interface;
  return host::reachable_address(network == "auto" ? "" : network,
                                 plan.cluster.source + ": task_container_defaults.dtrain_network_interface: ");
}

std::vector<std::string> rank_command(const LaunchPlan& plan) {
  std::vector<std::string> command{executable_path().string(), "start-rank"};
  command.insert(command.end(), plan.command.begin(), plan.command.end());
  return command;
}

void warn_not_collected(const Attempt& attempt, const std::string& text) {
  attempt.screen.line("dtrain: warning: " + text);
  attempt.events.write("not_collected", {{"cause", text}});
}

void await_agents_here(const Attempt& attempt, const JobEnd& end) {
  const auto deadline = std::chrono::steady_clock::now() + kAgentPatience;
  for (const auto& [agent, report] : end.hosts) {
    if (report.host != attempt.plan.host || report.agent_pid <= 0) continue;
    while (::kill(static_cast<pid_t>(report.agent_pid), 0) == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace dtrain::run
