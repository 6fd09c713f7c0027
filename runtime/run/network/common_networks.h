// Which networks some hosts have in common, from what each says of its interfaces. Pure functions.
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
  std::string host;  // as people call it
  std::vector<host::InterfaceAddress> addresses;
  std::map<std::string, std::int64_t> speeds;  // bits a second, of the interfaces that say so
};
Json to_json(const HostInterfaces& interfaces);
HostInterfaces interfaces_of(const Json& json);  // Json::exception where it is something else

// By address: networks in which every host has one, each another (a bridge of containers has the same on every host,
// and leads nowhere). IPv4 first; of one set of interfaces only one network.
// By name: interfaces that every host has, with addresses in different networks; `network` is empty, and whether routes
// join them is for the hosts to say.
std::vector<CommonNetwork> common_networks(std::span<const HostInterfaces> hosts);

// Those that a wish is about: "auto" all, else an interface's name or a network. ConfigError, its text beginning with
// `where`, names the host that lacks it; with "auto" it says what each host has, if nothing is common.
std::vector<CommonNetwork> wanted_networks(std::span<const HostInterfaces> hosts, const std::string& wanted,
                                           const std::string& where);

}  // namespace dtrain::run
