#include "network/network_choice.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"

namespace dtrain::run {
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
  const auto measured = [](const CommonNetwork& one) { return one.usable() && one.figures.has_value(); };
  std::stable_partition(networks.begin(), networks.end(), measured);
  const auto end = std::find_if_not(networks.begin(), networks.end(), measured);
  for (auto next = networks.begin(); next != end; ++next) {
    double best_rate = 0;
    for (auto one = next; one != end; ++one) best_rate = std::max(best_rate, one->figures->bits_per_second);
    const auto is_fast = [&](const CommonNetwork& one) { return one.figures->bits_per_second >= kAlike * best_rate; };
    double best_trip = 0;
    for (auto one = next; one != end; ++one) {
      const auto trip = static_cast<double>(one->figures->round_trip.count());
      if (is_fast(*one) && (best_trip == 0 || trip < best_trip)) best_trip = trip;
    }
    const auto is_best = [&](const CommonNetwork& one) {
      return is_fast(one) && static_cast<double>(one.figures->round_trip.count()) * kAlike <= best_trip;
    };
    auto best = std::find_if(next, end, [&](const CommonNetwork& one) { return is_best(one) && !is_v6(one); });
    if (best == end) best = std::find_if(next, end, is_best);
    std::rotate(next, best, best + 1);
  }
}

std::string several_networks_warning(const NetworkChoice& choice) {
  std::vector<std::string> usable;
  for (const CommonNetwork& one : choice.networks) {
    if (one.usable()) usable.push_back(one.describe());
  }
  if (usable.size() < 2) return {};
  return "the hosts have several networks in common: " + join(usable, ", ") + "; taken: " + usable.front() +
         ", the fastest (task_container_defaults.dtrain_network_interface in the cluster file says which without "
         "measuring)";
}

Json to_json(const NetworkChoice& choice) {
  Json networks = Json::array();
  for (const CommonNetwork& one : choice.networks) {
    Json ends = Json::array();
    for (const NetworkEnd& end : one.ends) {
      Json row{{"host", end.host}, {"interface", end.interface}, {"address", end.address}};
      if (end.link_bits_per_second) row["link_bits_per_second"] = *end.link_bits_per_second;
      ends.push_back(std::move(row));
    }
    Json row{{"interface", one.value()}, {"network", one.network.empty() ? Json() : Json(one.network)}};
    row["bits_per_second"] = one.figures ? Json(one.figures->bits_per_second) : Json();
    row["round_trip_us"] = one.figures ? Json(static_cast<double>(one.figures->round_trip.count()) / 1e3) : Json();
    if (!one.problem.empty()) row["problem"] = one.problem;
    row["hosts"] = std::move(ends);
    networks.push_back(std::move(row));
  }
  return {{"interface", choice.value()}, {"reason", choice.reason}, {"networks", networks}};
}

std::string render_network(const NetworkChoice& choice) {
  std::string text;
  for (const CommonNetwork& one : choice.networks) {
    text += text.empty() ? "network     " : "      or    ";
    text += one.render();
    if (&one == &choice.networks.front()) text += "; " + choice.reason;
    text += "\n";
  }
  return text;
}

namespace {

using host::InterfaceAddress;

bool leads_outside(const InterfaceAddress& one) {
  return !one.loopback && host::is_for_others(one);
}

bool is_v6(const InterfaceAddress& one) {
  return one.address.find(':') != std::string::npos;
}

NetworkEnd end_of(const HostInterfaces& host, const InterfaceAddress& one) {
  NetworkEnd end{.host = host.host, .interface = one.interface, .address = one.address};
  if (const auto speed = host.speeds.find(one.interface); speed != host.speeds.end()) {
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
    const auto inside = std::find_if(addresses.begin(), addresses.end(), [&](const InterfaceAddress& one) {
      const bool is_first = &host != hosts.data() || one.address == first.address;
      const auto address = host::network_of(one.address);
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
  if (std::none_of(all.begin(), all.end(), [&](const CommonNetwork& one) { return same_interfaces(one, network); })) {
    all.push_back(std::move(network));
  }
}

CommonNetwork named(std::span<const HostInterfaces> hosts, const std::string& interface) {
  CommonNetwork result;
  for (const HostInterfaces& host : hosts) {
    const std::vector<InterfaceAddress> addresses = outside_addresses(host);
    const auto found = std::find_if(addresses.begin(), addresses.end(),
                                    [&](const InterfaceAddress& one) { return one.interface == interface; });
    if (found == addresses.end()) return {};
    result.ends.push_back(end_of(host, *found));
  }
  return result;
}

std::string what_it_has(const HostInterfaces& host) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& one : outside_addresses(host)) {
    parts.push_back(one.interface + " (" + one.address + (one.prefix < 0 ? "" : "/" + std::to_string(one.prefix)) +
                    ")");
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
    const auto found = std::find_if(addresses.begin(), addresses.end(), [&](const InterfaceAddress& one) {
      const auto address = host::network_of(one.address);
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
  for (const InterfaceAddress& one : first) add(result, around(hosts, one));
  for (const InterfaceAddress& one : first) add(result, named(hosts, one.interface));
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
    const HostInterfaces* one = &host;
    if (named({one, 1}, wanted).ends.empty()) {
      throw ConfigError(
          where + "host " + host.host + " has no interface '" + wanted + "' that is up and has an address",
          what_it_has(host));
    }
  }
  CommonNetwork result = named(hosts, wanted);
  // If these interfaces are in a common network, the result names it.
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const CommonNetwork& one) { return same_interfaces(one, result); });
  if (known != all.end()) result = *known;
  return {checked(result, wanted, where)};
}

Json to_json(const HostInterfaces& interfaces) {
  Json addresses = Json::array();
  for (const InterfaceAddress& one : interfaces.addresses) {
    addresses.push_back(Json::array({one.interface, one.address, one.loopback, one.prefix}));
  }
  Json speeds = Json::object();
  for (const auto& [name, speed] : interfaces.speeds) speeds[name] = speed;
  return {{"addresses", addresses}, {"speeds", speeds}};
}

HostInterfaces interfaces_of(const Json& json) {
  HostInterfaces result;
  for (const Json& one : json.at("addresses")) {
    result.addresses.push_back(
        {one.at(0).get<std::string>(), one.at(1).get<std::string>(), one.at(2).get<bool>(), one.at(3).get<int>()});
  }
  for (const auto& [name, speed] : json.at("speeds").items()) result.speeds[name] = speed.get<std::int64_t>();
  return result;
}

}  // namespace dtrain::run
