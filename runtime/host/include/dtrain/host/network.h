// This machine among others: its network interfaces with their traffic (/proc/net/dev) and addresses, the address that
// other hosts should use, its names and its identity. Any thread may call.
#pragma once

#include <array>
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

// An IP address or network (CIDR) of either family, as numbers.
struct IpNetwork {
  bool v6 = false;
  std::array<unsigned char, 16> bytes{};  // IPv4 uses the first four; zero beyond the prefix
  int prefix = 0;

  int bits() const { return v6 ? 128 : 32; }
  bool contains(const IpNetwork& other) const;  // an address is a network of its full length
  std::string text() const;                     // "10.1.0.0/16"
  bool operator==(const IpNetwork&) const = default;
};

// Returns the network 10.1.0.0/16 for "10.1.2.3" with a prefix of 16. A negative prefix: the address itself. Empty:
// invalid address or prefix.
std::optional<IpNetwork> network_of(const std::string& address, int prefix = -1);

// Reads "10.1.0.0/16"; the bits beyond the prefix may be set. Empty: the text is no network.
std::optional<IpNetwork> parse_network(const std::string& text);

// Returns the address of this machine that other hosts should use. `wanted`: an interface's name, or a network as
// in 10.1.0.0/16; empty or "auto": the interface of the default route, else the only one that is not loopback, else
// 127.0.0.1. ConfigError if the wanted interface is missing, or if several are possible; it begins with `where` and
// names the interfaces that exist.
std::string reachable_address(const std::string& wanted, const std::string& where);

// Chooses among the given interfaces; `default_interface` is empty if there is no default route.
std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                           const std::string& default_interface, const std::string& where);

// Returns the name of the interface that has that address, for NCCL. "lo" if there is none.
std::string interface_of(const std::string& wanted, const std::string& where);

// Returns the address of this host from which the kernel would send to `to`, by its routes. Sends nothing. Empty: there
// is no route.
std::string source_address(const std::string& to);

// ConfigError if this host cannot connect to its own address 127.0.0.1, by which the ranks of one host find each other:
// a network namespace begins with its interface lo down.
void check_loopback();

// Identifies this host. The host name is never used for that: containers share names, and names change.
struct HostIdentity {
  std::string name;     // uname's node name, for people
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::string key;      // boot id and ids of the network, IPC and PID namespaces; equal keys: one host
};

HostIdentity host_identity();

// The names of this host that need no name server: its host name, whole and up to the first dot, localhost, and the
// addresses of its interfaces.
class HostNames {
 public:
  HostNames();  // SystemError when the kernel does not report them
  bool contains(const std::string& host) const;

 private:
  std::string name_;
  std::set<std::string> addresses_;
};

}  // namespace dtrain::host
