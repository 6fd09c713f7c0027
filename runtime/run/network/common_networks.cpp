#include "network/common_networks.h"

#include <algorithm>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/ip_network.h"

namespace dtrain::run {
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

// The addresses that other hosts can use, IPv4 first.
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

// The network of address `first`, with one address of every host in it; no ends if some host has none.
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

// One address of each host inside a network that the user names, which may contain several of the hosts' networks.
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
