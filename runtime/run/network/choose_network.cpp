#include "network/choose_network.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/network.h"
#include "network/network_choice.h"
#include "network/probe_session.h"

namespace dtrain::run {
namespace {

using namespace std::chrono_literals;

constexpr auto kLoginPatience = 20s;  // ssh stops connecting after five
constexpr auto kAnswerPatience = 10s;
constexpr Nanoseconds kSending = 600ms;
constexpr auto kMeasuringPatience = 15s;  // longer than the hosts' own deadlines
// If there are more networks than this, the ones with the lowest declared speed are not measured.
constexpr std::size_t kMostNetworks = 8;

// Starts one probe for each host, this one first: two agents may be on one host.
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

ProbeSession::Time within(std::chrono::seconds seconds) {
  return std::chrono::steady_clock::now() + seconds;
}

// Returns the text of the first answer that is an error; empty: none is.
std::string first_error(const std::vector<Json>& answers) {
  for (const Json& answer : answers) {
    if (answer.contains("error")) {
      const std::string remedy = answer.value("remedy", "");
      return answer.value("error", "an error") + (remedy.empty() ? "" : " (" + remedy + ")");
    }
  }
  return {};
}

// Returns the problem; empty: every host sends to every other over this network's interface.
std::string route_problem(const CommonNetwork& network, std::vector<ProbeSession>& sessions) {
  Json addresses = Json::array();
  for (const NetworkEnd& end : network.ends) addresses.push_back(end.address);
  const std::vector<Json> answers =
      ask_all(sessions, {{"do", probe::kRoutes}, {"to", addresses}}, within(kMeasuringPatience));
  if (std::string error = first_error(answers); !error.empty()) return error;
  for (std::size_t i = 0; i < network.ends.size(); ++i) {
    for (std::size_t j = 0; j < network.ends.size(); ++j) {
      const std::string from = i == j ? network.ends[i].address : answers[i].at("from").at(j).get<std::string>();
      if (from == network.ends[i].address) continue;
      return network.ends[i].host + (from.empty() ? " has no route to " : " uses another interface to reach ") +
             network.ends[j].host + " (" + network.ends[j].address + ")";
    }
  }
  return {};
}

// Measures from each host to the next, all at once, and sets the figures. Returns the first error, or an empty text.
std::string measure(CommonNetwork& network, std::vector<ProbeSession>& sessions) {
  const std::string secret = random_hex(16);
  const int hosts = static_cast<int>(sessions.size());
  std::vector<Json> requests;
  for (int i = 0; i < hosts; ++i) {
    requests.push_back({{"do", probe::kServe},
                        {"address", network.ends[static_cast<std::size_t>(i)].address},
                        {"secret", secret},
                        {"server", i}});
  }
  const std::vector<Json> ports = ask_each(sessions, requests, within(kMeasuringPatience));
  if (std::string error = first_error(ports); !error.empty()) return error;
  for (int i = 0; i < hosts; ++i) {
    const auto next = static_cast<std::size_t>((i + 1) % hosts);
    requests[static_cast<std::size_t>(i)] = {{"do", probe::kRoundTrip},
                                             {"from", network.ends[static_cast<std::size_t>(i)].address},
                                             {"address", network.ends[next].address},
                                             {"port", ports[next].at("port")},
                                             {"secret", secret},
                                             {"server", next},
                                             {"duration_ns", kSending.count()}};
  }
  const std::vector<Json> trips = ask_each(sessions, requests, within(kMeasuringPatience));
  if (std::string error = first_error(trips); !error.empty()) return error;
  for (Json& request : requests) request["do"] = probe::kBandwidth;
  const std::vector<Json> rates = ask_each(sessions, requests, within(kMeasuringPatience));
  if (std::string error = first_error(rates); !error.empty()) return error;
  NetworkFigures figures{.bits_per_second = std::numeric_limits<double>::max()};
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    figures.round_trip = std::max(figures.round_trip, Nanoseconds(trips[i].at("ns").get<std::int64_t>()));
    figures.bits_per_second = std::min(figures.bits_per_second, rates[i].at("bits_per_second").get<double>());
  }
  network.figures = figures;
  return {};
}

// Returns the declared speed of the slowest device; 0 if one declares none.
std::int64_t declared_speed(const CommonNetwork& network) {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  for (const NetworkEnd& end : network.ends) slowest = std::min(slowest, end.link_bits_per_second.value_or(0));
  return slowest;
}

// Sets the figures or the problem of each network, each in about a second. `sessions` are in the order of its ends.
// CommError if a host is lost.
void measure_networks(std::vector<CommonNetwork>& networks, std::vector<ProbeSession>& sessions) {
  if (networks.size() > kMostNetworks) {
    std::stable_sort(networks.begin(), networks.end(), [](const CommonNetwork& a, const CommonNetwork& b) {
      return declared_speed(a) > declared_speed(b);
    });
  }
  std::size_t measured = 0;
  for (CommonNetwork& network : networks) {
    if (measured++ == kMostNetworks) {
      network.problem = "not measured: there are more than " + std::to_string(kMostNetworks);
      --measured;
      continue;
    }
    if (network.network.empty()) network.problem = route_problem(network, sessions);
    if (network.usable()) network.problem = measure(network, sessions);
  }
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

RemoteCommand over_remote_shell(std::vector<std::string> shell) {
  if (shell.empty()) shell = {"ssh"};
  if (std::filesystem::path(shell.front()).filename() == "ssh") {
    // ssh takes the first value of an option, so the user's options go before these.
    for (const char* word : {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"}) shell.emplace_back(word);
  }
  return [shell](const std::string& host, const std::vector<std::string>& command) {
    if (host.empty()) return command;
    std::vector<std::string> result = shell;
    result.push_back(host);
    std::string text;
    for (const std::string& word : command) text += (text.empty() ? "" : " ") + shell_quoted(word);
    result.push_back(text);
    return result;
  };
}

RemoteCommand over_srun() {
  return [](const std::string& host, const std::vector<std::string>& command) {
    if (host.empty()) return command;
    std::vector<std::string> result{"srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=" + host};
    result.insert(result.end(), command.begin(), command.end());
    return result;
  };
}

}  // namespace dtrain::run
