#include "network/measure_networks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "network/probe_words.h"

namespace dtrain::run {
namespace {

using namespace std::chrono_literals;

constexpr Nanoseconds kSending = 600ms;
constexpr auto kMeasuringPatience = 15s;  // longer than the hosts' own deadlines
// If there are more networks than this, the ones with the lowest declared speed are not measured.
constexpr std::size_t kMostNetworks = 8;

ProbeSession::Time within(std::chrono::seconds seconds) {
  return std::chrono::steady_clock::now() + seconds;
}

// The text of the first answer that is an error; empty: none is.
std::string first_error(const std::vector<Json>& answers) {
  for (const Json& answer : answers) {
    if (answer.contains("error")) {
      const std::string remedy = answer.value("remedy", "");
      return answer.value("error", "an error") + (remedy.empty() ? "" : " (" + remedy + ")");
    }
  }
  return {};
}

// Empty if every host sends to every other over this network's interface.
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

// The declared speed of the slowest device; 0 if one declares none.
std::int64_t declared_speed(const CommonNetwork& network) {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  for (const NetworkEnd& end : network.ends) slowest = std::min(slowest, end.link_bits_per_second.value_or(0));
  return slowest;
}

}  // namespace

std::vector<Json> ask_each(std::vector<ProbeSession>& sessions, const std::vector<Json>& requests,
                           ProbeSession::Time deadline) {
  for (std::size_t i = 0; i < sessions.size(); ++i) sessions[i].send(requests[i]);
  std::vector<Json> answers;
  answers.reserve(sessions.size());
  for (ProbeSession& session : sessions) answers.push_back(session.receive(deadline));
  return answers;
}

std::vector<Json> ask_all(std::vector<ProbeSession>& sessions, const Json& request, ProbeSession::Time deadline) {
  return ask_each(sessions, std::vector<Json>(sessions.size(), request), deadline);
}

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

}  // namespace dtrain::run
