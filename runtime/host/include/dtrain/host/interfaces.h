// Network interfaces of this machine: their traffic (/proc/net/dev) and their addresses. Any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dtrain::host {

// Bytes since the interface came up.
struct NetworkCounters {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
};

// Reads the counters of every interface, loopback and virtual ones included, by name.
std::map<std::string, NetworkCounters> read_network(const std::filesystem::path& root = "/");

// Returns the interfaces whose traffic leaves the machine, so that their sum counts each byte once: those with a
// device. If none has a device (inside a container): all except loopback; bridges, bonds, VLANs and macvlans, which
// repeat the bytes of their lower interfaces; tunnels, whose bytes another interface carries; and veth pairs with both
// ends on this machine.
std::set<std::string> outside_interfaces(const std::filesystem::path& root = "/");

struct InterfaceAddress {
  std::string interface;
  std::string address;  // "192.168.1.7", "fe80::1"
  bool loopback = false;
  int prefix = -1;  // bits of its network; -1: not known
};

// True if other hosts can use the address without naming one of their interfaces; false if it is link-local (IPv6).
bool is_for_others(const InterfaceAddress& address);

// Returns the addresses of the interfaces that are up, in the kernel's order. SystemError if it does not report them.
std::vector<InterfaceAddress> interface_addresses();

// Returns the speed that the device reports, in bits a second; empty: none (a virtual device, or no cable).
std::optional<std::int64_t> link_speed(const std::string& interface, const std::filesystem::path& root = "/");

}  // namespace dtrain::host
