// Network interfaces of this machine: their traffic (/proc/net/dev) and their addresses. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace dtrain::host {

// Bytes since the interface came up.
struct NetworkCounters {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
};

// Every interface, loopback and virtual ones included, by name.
std::map<std::string, NetworkCounters> read_network(const std::filesystem::path& root = "/");

// Those whose traffic leaves the machine: the ones with a device behind them, since a bridge, a bond or a VLAN repeats
// the bytes of its device. Where none has one (inside a container), all but loopback.
std::set<std::string> outside_interfaces(const std::filesystem::path& root = "/");

struct InterfaceAddress {
  std::string interface;
  std::string address;  // "192.168.1.7", "fe80::1"
  bool loopback = false;
};

// The addresses of the interfaces that are up, in the kernel's order. SystemError when the kernel does not say.
std::vector<InterfaceAddress> interface_addresses();

}  // namespace dtrain::host
