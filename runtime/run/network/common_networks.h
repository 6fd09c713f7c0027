// Which networks hosts have in common, derived from their interfaces. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dtrain/host/interfaces.h"
#include "network/network_choice.h"

namespace dtrain::run {

struct HostInterfaces {
  std::string host;  // its name in messages
  std::vector<host::InterfaceAddress> addresses;
  std::map<std::string, std::int64_t> speeds;  // bits per second, of interfaces that report a speed
};
Json to_json(const HostInterfaces& interfaces);
HostInterfaces interfaces_of(const Json& json);  // Json::exception if it is malformed

// By address: networks in which every host has an address of its own (a bridge of containers has the same one on every
// host and leads nowhere). IPv4 first; only one network for each set of interfaces.
// By name: interfaces that every host has, with addresses in different networks. `network` is then empty, and the hosts
// must check whether routes join them.
std::vector<CommonNetwork> common_networks(std::span<const HostInterfaces> hosts);

// The common networks that `wanted` selects: "auto" all of them, else an interface's name or a network. ConfigError
// begins with `where` and names the host that lacks it; with "auto" and no common network it lists what each host has.
std::vector<CommonNetwork> wanted_networks(std::span<const HostInterfaces> hosts, const std::string& wanted,
                                           const std::string& where);

}  // namespace dtrain::run
