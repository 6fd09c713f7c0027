#include "network/choose_network.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/identity.h"
#include "network/common_networks.h"
#include "network/measure_networks.h"
#include "network/probe_words.h"

namespace dtrain::run {
namespace {

using namespace std::chrono_literals;

constexpr auto kLoginPatience = 20s;  // ssh stops connecting after five
constexpr auto kAnswerPatience = 10s;

// One probe for each host, this one first: two agents may be on one host.
std::vector<ProbeSession> start_probes(const NetworkRequest& request) {
  const std::vector<std::string> probe{executable_path().string(), "host-probe"};
  std::vector<ProbeSession> all;
  all.emplace_back(host::host_identity().name, probe);
  std::set<std::string> asked{""};
  for (const std::string& host : request.hosts) {
    if (asked.insert(host).second) all.emplace_back(host, request.remote(host, probe));
  }
  const auto deadline = std::chrono::steady_clock::now() + kLoginPatience;
  std::vector<ProbeSession> result;
  std::set<std::string> keys;
  for (ProbeSession& session : all) {
    session.greet(deadline);
    if (keys.insert(session.key()).second) result.push_back(std::move(session));
  }
  return result;
}

std::string reason_for(const NetworkRequest& request, std::size_t usable) {
  if (request.wanted != "auto" && !request.wanted.empty()) return "dtrain_network_interface: " + request.wanted;
  return usable == 1 ? "the only one that joins the hosts" : "the fastest of " + std::to_string(usable);
}

}  // namespace

NetworkChoice choose_network(const NetworkRequest& request) {
  std::vector<ProbeSession> sessions = start_probes(request);
  if (sessions.size() < 2) return {.reason = "all ranks are on one host"};
  const auto deadline = std::chrono::steady_clock::now() + kAnswerPatience;
  const std::vector<Json> answers = ask_all(sessions, {{"do", probe::kInterfaces}}, deadline);
  std::vector<HostInterfaces> hosts;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    try {
      hosts.push_back(interfaces_of(answers[i]));
    } catch (const Json::exception&) {
      throw CommError("host " + sessions[i].host() + " cannot list its interfaces: " + to_line(answers[i]));
    }
    hosts.back().host = sessions[i].host();
  }
  const std::string where = request.source + ": dtrain_network_interface: ";
  NetworkChoice choice{.networks = wanted_networks(hosts, request.wanted, where)};
  measure_networks(choice.networks, sessions);
  const auto usable = static_cast<std::size_t>(std::count_if(choice.networks.begin(), choice.networks.end(),
                                                             [](const CommonNetwork& one) { return one.usable(); }));
  if (usable == 0) {
    std::vector<std::string> lines;
    for (const CommonNetwork& one : choice.networks) lines.push_back(one.describe() + ": " + one.problem);
    throw ConfigError(where + "no network joins the hosts: " + join(lines, "; "),
                      "open it in the firewalls between the hosts, or name another one");
  }
  sort_by_speed(choice.networks);
  choice.reason = reason_for(request, usable);
  return choice;
}

}  // namespace dtrain::run
