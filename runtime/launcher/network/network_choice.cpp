#include "network/network_choice.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "network/link_meter.h"

namespace dtrain::launcher {

namespace {

constexpr double kAlike = 0.9;  // measurements of one network vary by this much

std::string rate_text(double bits_per_second) {
  char text[32];
  const bool giga = bits_per_second >= 1e9;
  const double value = bits_per_second / (giga ? 1e9 : 1e6);
  std::snprintf(text, sizeof text, value < 100 ? "%.1f %s" : "%.0f %s", value, giga ? "Gbit/s" : "Mbit/s");
  return text;
}

// True if the interface has the same name on every host.
bool one_name(const CommonNetwork& network) {
  return std::all_of(network.ends.begin(), network.ends.end(),
                     [&](const NetworkEnd& end) { return end.interface == network.ends.front().interface; });
}

std::string names(const CommonNetwork& network) {
  if (network.ends.empty()) return {};
  std::set<std::string> all;
  for (const NetworkEnd& end : network.ends) all.insert(end.interface);
  return join(std::vector<std::string>(all.begin(), all.end()), "|");
}

bool is_v6(const CommonNetwork& network) {
  return network.network.find(':') != std::string::npos;
}

}  // namespace

std::string CommonNetwork::value() const {
  if (ends.empty()) return network;
  return one_name(*this) || network.empty() ? ends.front().interface : network;
}

std::string CommonNetwork::describe() const {
  return names(*this) + (network.empty() ? " (routed)" : " (" + network + ")");
}

std::string CommonNetwork::render() const {
  std::string text = describe();
  if (figures) {
    text += ": " + rate_text(figures->bits_per_second) + ", round trip " + format_duration(figures->round_trip);
  }
  return usable() ? text : text + ": " + problem;
}

void sort_by_speed(std::vector<CommonNetwork>& networks) {
  // Repeatedly picks the fastest of the rest: "within a tenth of the best" is no ordering that a sort could use.
  const auto measured = [](const CommonNetwork& network) { return network.usable() && network.figures.has_value(); };
  std::stable_partition(networks.begin(), networks.end(), measured);
  const auto end = std::find_if_not(networks.begin(), networks.end(), measured);
  for (auto next = networks.begin(); next != end; ++next) {
    double best_rate = 0;
    for (auto network = next; network != end; ++network)
      best_rate = std::max(best_rate, network->figures->bits_per_second);
    const auto is_fast = [&](const CommonNetwork& network) {
      return network.figures->bits_per_second >= kAlike * best_rate;
    };
    double best_trip = 0;
    for (auto network = next; network != end; ++network) {
      const auto trip = static_cast<double>(network->figures->round_trip.count());
      if (is_fast(*network) && (best_trip == 0 || trip < best_trip)) best_trip = trip;
    }
    const auto is_best = [&](const CommonNetwork& network) {
      return is_fast(network) && static_cast<double>(network.figures->round_trip.count()) * kAlike <= best_trip;
    };
    auto best =
        std::find_if(next, end, [&](const CommonNetwork& network) { return is_best(network) && !is_v6(network); });
    if (best == end) best = std::find_if(next, end, is_best);
    std::rotate(next, best, best + 1);
  }
}

std::string several_networks_warning(const NetworkChoice& choice) {
  std::vector<std::string> usable;
  for (const CommonNetwork& network : choice.networks) {
    if (network.usable()) usable.push_back(network.describe());
  }
  if (usable.size() < 2) return {};
  return "the hosts have several networks in common: " + join(usable, ", ") + "; taken: " + usable.front() +
         ", the fastest (task_container_defaults.dtrain_network_interface in the cluster file says which without "
         "measuring)";
}

Json to_json(const NetworkChoice& choice) {
  Json networks = Json::array();
  for (const CommonNetwork& network : choice.networks) {
    Json ends = Json::array();
    for (const NetworkEnd& end : network.ends) {
      Json row{{"host", end.host}, {"interface", end.interface}, {"address", end.address}};
      if (end.link_bits_per_second) row["link_bits_per_second"] = *end.link_bits_per_second;
      ends.push_back(std::move(row));
    }
    Json row{{"interface", network.value()}, {"network", network.network.empty() ? Json() : Json(network.network)}};
    row["bits_per_second"] = network.figures ? Json(network.figures->bits_per_second) : Json();
    row["round_trip_us"] =
        network.figures ? Json(static_cast<double>(network.figures->round_trip.count()) / 1e3) : Json();
    if (!network.problem.empty()) row["problem"] = network.problem;
    row["hosts"] = std::move(ends);
    networks.push_back(std::move(row));
  }
  return {{"interface", choice.value()}, {"reason", choice.reason}, {"networks", networks}};
}

std::string render_network(const NetworkChoice& choice) {
  std::string text;
  for (const CommonNetwork& network : choice.networks) {
    text += text.empty() ? "network     " : "      or    ";
    text += network.render();
    if (&network == &choice.networks.front()) text += "; " + choice.reason;
    text += "\n";
  }
  return text;
}

namespace {

using host::InterfaceAddress;

bool leads_outside(const InterfaceAddress& address) {
  return !address.loopback && host::is_for_others(address);
}

bool is_v6(const InterfaceAddress& address) {
  return address.address.find(':') != std::string::npos;
}

NetworkEnd end_of(const HostInterfaces& host, const InterfaceAddress& address) {
  NetworkEnd end{.host = host.host, .interface = address.interface, .address = address.address};
  if (const auto speed = host.speeds.find(address.interface); speed != host.speeds.end()) {
    end.link_bits_per_second = speed->second;
  }
  return end;
}

// Returns the addresses that other hosts can use, IPv4 first.
std::vector<InterfaceAddress> outside_addresses(const HostInterfaces& host) {
  std::vector<InterfaceAddress> result;
  std::copy_if(host.addresses.begin(), host.addresses.end(), std::back_inserter(result), leads_outside);
  std::stable_sort(result.begin(), result.end(),
                   [](const InterfaceAddress& a, const InterfaceAddress& b) { return is_v6(a) < is_v6(b); });
  return result;
}

bool all_differ(const CommonNetwork& network) {
  std::set<std::string> addresses;
  for (const NetworkEnd& end : network.ends) addresses.insert(end.address);
  return addresses.size() == network.ends.size();
}

// Returns the network of address `first`, with one address of every host in it; no ends if some host has none.
CommonNetwork around(std::span<const HostInterfaces> hosts, const InterfaceAddress& first) {
  CommonNetwork result;
  auto network = host::network_of(first.address, first.prefix);
  if (!network || network->prefix == network->bits()) return result;  // no other host can be in it
  std::vector<NetworkEnd> ends;
  for (const HostInterfaces& host : hosts) {
    const std::vector<InterfaceAddress> addresses = outside_addresses(host);
    const auto inside = std::find_if(addresses.begin(), addresses.end(), [&](const InterfaceAddress& other) {
      const bool is_first = &host != hosts.data() || other.address == first.address;
      const auto address = host::network_of(other.address);
      return is_first && address && network->contains(*address);
    });
    if (inside == addresses.end()) return result;
    // Hosts may have different prefixes for one network: the shortest prefix is the one that all share.
    const auto theirs = host::network_of(inside->address, inside->prefix);
    if (theirs && theirs->prefix > 0 && theirs->contains(*network)) network = theirs;
    ends.push_back(end_of(host, *inside));
  }
  result.network = network->text();
  result.ends = std::move(ends);
  return result;
}

bool same_interfaces(const CommonNetwork& a, const CommonNetwork& b) {
  return std::equal(a.ends.begin(), a.ends.end(), b.ends.begin(), b.ends.end(),
                    [](const NetworkEnd& x, const NetworkEnd& y) { return x.interface == y.interface; });
}

void add(std::vector<CommonNetwork>& all, CommonNetwork network) {
  if (network.ends.empty() || !all_differ(network)) return;
  if (std::none_of(all.begin(), all.end(),
                   [&](const CommonNetwork& known) { return same_interfaces(known, network); })) {
    all.push_back(std::move(network));
  }
}

CommonNetwork named(std::span<const HostInterfaces> hosts, const std::string& interface) {
  CommonNetwork result;
  for (const HostInterfaces& host : hosts) {
    const std::vector<InterfaceAddress> addresses = outside_addresses(host);
    const auto found = std::find_if(addresses.begin(), addresses.end(),
                                    [&](const InterfaceAddress& address) { return address.interface == interface; });
    if (found == addresses.end()) return {};
    result.ends.push_back(end_of(host, *found));
  }
  return result;
}

std::string what_it_has(const HostInterfaces& host) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& address : outside_addresses(host)) {
    parts.push_back(address.interface + " (" + address.address +
                    (address.prefix < 0 ? "" : "/" + std::to_string(address.prefix)) + ")");
  }
  return host.host + " has " + (parts.empty() ? "no address but loopback" : join(parts, ", "));
}

std::string what_all_have(std::span<const HostInterfaces> hosts) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> parts;
  for (const HostInterfaces& host : hosts.first(std::min(hosts.size(), kMost))) parts.push_back(what_it_has(host));
  return join(parts, "; ") + (hosts.size() > kMost ? "; …" : "");
}

// Refuses an address that two hosts have: it leads from neither to the other.
CommonNetwork checked(const CommonNetwork& network, const std::string& wanted, const std::string& where) {
  for (std::size_t i = 0; i < network.ends.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (network.ends[i].address != network.ends[j].address) continue;
      throw ConfigError(where + wanted + " leads from no host to another: " + network.ends[j].host + " and " +
                            network.ends[i].host + " both have the address " + network.ends[i].address + " there",
                        "bridges of containers are like that: name another interface, or auto");
    }
  }
  return network;
}

// Finds one address of each host in a network that the user names, which may contain several of the hosts' networks.
CommonNetwork inside(std::span<const HostInterfaces> hosts, const std::string& wanted, const std::string& where) {
  const auto network = host::parse_network(wanted);
  if (!network) throw ConfigError(where + wanted + " is not a network", "write it as 10.1.0.0/16");
  CommonNetwork result{.network = network->text()};
  for (const HostInterfaces& host : hosts) {
    const std::vector<InterfaceAddress> addresses = outside_addresses(host);
    const auto found = std::find_if(addresses.begin(), addresses.end(), [&](const InterfaceAddress& entry) {
      const auto address = host::network_of(entry.address);
      return address && network->contains(*address);
    });
    if (found == addresses.end()) {
      throw ConfigError(where + "no address of host " + host.host + " is in " + wanted, what_it_has(host));
    }
    result.ends.push_back(end_of(host, *found));
  }
  return checked(result, wanted, where);
}

}  // namespace

std::vector<CommonNetwork> common_networks(std::span<const HostInterfaces> hosts) {
  std::vector<CommonNetwork> result;
  if (hosts.size() < 2) return result;
  const std::vector<InterfaceAddress> first = outside_addresses(hosts.front());
  for (const InterfaceAddress& address : first) add(result, around(hosts, address));
  for (const InterfaceAddress& address : first) add(result, named(hosts, address.interface));
  return result;
}

std::vector<CommonNetwork> wanted_networks(std::span<const HostInterfaces> hosts, const std::string& wanted,
                                           const std::string& where) {
  if (wanted.find('/') != std::string::npos) return {inside(hosts, wanted, where)};
  std::vector<CommonNetwork> all = common_networks(hosts);
  if (wanted.empty() || wanted == "auto") {
    if (all.empty()) {
      throw ConfigError(where + "the hosts have no network in common", what_all_have(hosts));
    }
    return all;
  }
  for (const HostInterfaces& host : hosts) {
    const HostInterfaces* only = &host;
    if (named({only, 1}, wanted).ends.empty()) {
      throw ConfigError(
          where + "host " + host.host + " has no interface '" + wanted + "' that is up and has an address",
          what_it_has(host));
    }
  }
  CommonNetwork result = named(hosts, wanted);
  // If these interfaces are in a common network, the result names it.
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const CommonNetwork& known) { return same_interfaces(known, result); });
  if (known != all.end()) result = *known;
  return {checked(result, wanted, where)};
}

Json to_json(const HostInterfaces& interfaces) {
  Json addresses = Json::array();
  for (const InterfaceAddress& address : interfaces.addresses) {
    addresses.push_back(Json::array({address.interface, address.address, address.loopback, address.prefix}));
  }
  Json speeds = Json::object();
  for (const auto& [name, speed] : interfaces.speeds) speeds[name] = speed;
  return {{"addresses", addresses}, {"speeds", speeds}};
}

HostInterfaces interfaces_of(const Json& json) {
  HostInterfaces result;
  for (const Json& entry : json.at("addresses")) {
    result.addresses.push_back({entry.at(0).get<std::string>(), entry.at(1).get<std::string>(), entry.at(2).get<bool>(),
                                entry.at(3).get<int>()});
  }
  for (const auto& [name, speed] : json.at("speeds").items()) result.speeds[name] = speed.get<std::int64_t>();
  return result;
}

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
  const auto usable = static_cast<std::size_t>(std::count_if(
      choice.networks.begin(), choice.networks.end(), [](const CommonNetwork& network) { return network.usable(); }));
  if (usable == 0) {
    std::vector<std::string> lines;
    for (const CommonNetwork& network : choice.networks) lines.push_back(network.describe() + ": " + network.problem);
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

}  // namespace dtrain::launcher
