#include "dtrain/host/network.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

int prefix_of(const sockaddr* mask) {
  if (mask == nullptr) return -1;
  const bool v6 = mask->sa_family == AF_INET6;
  const auto* bytes =
      v6 ? reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr
         : reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
  int bits = 0;
  for (int i = 0; i < (v6 ? 16 : 4); ++i) bits += std::popcount(static_cast<unsigned>(bytes[i]));
  return bits;
}

namespace fs = std::filesystem;

// The facts of sysfs about an interface, and the bytes that it has carried.
struct InterfaceFacts {
  bool has_device = false;
  bool is_tunnel = false;             // another interface carries its bytes, packed
  std::string master;                 // the bridge or bond that it is a port of
  std::vector<std::string> lower;     // lower interfaces: ports of a bridge or a bond, the parent of a VLAN or macvlan
  std::uint64_t index = 0, link = 0;  // its own number; its parent's, or of a veth its peer's (in the peer's namespace)
  NetworkCounters counters;
};

std::map<std::string, InterfaceFacts> read_interfaces(const fs::path& root) {
  constexpr std::uint64_t kTunnels[] = {768, 769, 776, 778, 823, 65534};  // IP in IP, GRE, WireGuard and TUN
  std::map<std::string, InterfaceFacts> result;
  for (const auto& [name, counters] : read_network(root)) {
    if (name == "lo") continue;
    InterfaceFacts& facts = result[name];
    const fs::path folder = root / "sys/class/net" / name;
    std::error_code error;
    facts.has_device = fs::exists(folder / "device", error);
    facts.master = fs::read_symlink(folder / "master", error).filename().string();
    const auto number = [&](const char* file) {
      return Fields(read_proc_file(folder / file).value_or(""), '\n').number();
    };
    facts.is_tunnel = std::find(std::begin(kTunnels), std::end(kTunnels), number("type")) != std::end(kTunnels);
    facts.index = number("ifindex");
    facts.link = number("iflink");
    facts.counters = counters;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      constexpr std::string_view kLower = "lower_";
      const std::string file = entry->path().filename().string();
      if (file.starts_with(kLower)) facts.lower.push_back(file.substr(kLower.size()));
    }
  }
  return result;
}

// True for the two ends of a veth pair in this namespace: each receives the other's bytes, and none leave the machine.
// The peer's number may be of an interface in another namespace, so the bytes are compared as well.
bool are_peers(const InterfaceFacts& a, const InterfaceFacts& b) {
  if (a.link == 0 || a.link == a.index || a.link != b.index || b.link != a.index) return false;
  const auto alike = [](std::uint64_t sent, std::uint64_t received) {
    constexpr std::uint64_t kUnderWay = 1 << 20;
    return std::max(sent, received) - std::min(sent, received) <= kUnderWay + sent / 100;
  };
  return alike(a.counters.sent, b.counters.received) && alike(b.counters.sent, a.counters.received);
}

void clear_beyond(IpNetwork& network) {
  for (int bit = network.prefix; bit < 128; ++bit) {
    network.bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<unsigned char>(~(0x80u >> (bit % 8)));
  }
}

std::string known(const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& entry : addresses) {
    if (is_for_others(entry)) parts.push_back(entry.interface + " (" + entry.address + ")");
  }
  return parts.empty() ? "this host has no address" : "this host has " + join(parts, ", ");
}

template <class Wanted>
std::optional<std::string> first(const std::vector<InterfaceAddress>& addresses, const Wanted& is_wanted) {
  // IPv4 comes first: if a host has both, other hosts are more likely to reach its IPv4 address.
  for (const bool v6 : {false, true}) {
    for (const InterfaceAddress& entry : addresses) {
      if (is_for_others(entry) && (entry.address.find(':') != std::string::npos) == v6 && is_wanted(entry))
        return entry.address;
    }
  }
  return std::nullopt;
}

std::string in_network(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                       const std::string& where) {
  const auto network = parse_network(wanted);
  if (!network) {
    throw ConfigError(where + wanted + " is not a network", "write it as 10.1.0.0/16, or name an interface");
  }
  const auto found = first(addresses, [&](const InterfaceAddress& entry) {
    const auto address = network_of(entry.address);
    return address && network->contains(*address);
  });
  if (!found) throw ConfigError(where + "no address of this host is in " + wanted, known(addresses));
  return *found;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string first_label(const std::string& name) {
  return name.substr(0, name.find('.'));
}

// Returns the interface of the default route (IPv4).
std::string default_interface() {
  const std::string text = read_proc_file("/proc/net/route").value_or("");
  Fields lines(text, '\n');
  lines.skip(1);  // the heading
  while (const auto line = lines.next()) {
    Fields fields(*line, '\t');
    std::string name(fields.next().value_or(""));
    if (fields.next().value_or("") == "00000000") return name;
  }
  return {};
}

}  // namespace

std::map<std::string, NetworkCounters> read_network(const std::filesystem::path& root) {
  std::map<std::string, NetworkCounters> result;
  const std::string text = read_proc_file(root / "proc/net/dev").value_or("");
  for (Fields lines(text, '\n'); const auto line = lines.next();) {
    const std::size_t colon = line->find(':');  // "  eth0: 1234 …"; old kernels leave out the space
    if (colon == std::string_view::npos) continue;
    const std::string_view name = Fields(line->substr(0, colon), ' ').next().value_or("");
    Fields fields(line->substr(colon + 1), ' ');
    if (name.empty()) continue;
    NetworkCounters counters;
    counters.received = fields.number();
    fields.skip(7);  // packets errs drop fifo frame compressed multicast
    counters.sent = fields.number();
    result.emplace(name, counters);
  }
  return result;
}

std::set<std::string> outside_interfaces(const std::filesystem::path& root) {
  const std::map<std::string, InterfaceFacts> all = read_interfaces(root);
  std::set<std::string> with_device, without;
  for (const auto& [name, facts] : all) {
    const auto master = all.find(facts.master);
    // The master of this port may have a device of its own, and then counts the port's bytes too (a virtual function in
    // a virtual machine of Azure).
    const bool is_counted = master != all.end() && master->second.has_device;
    if (facts.has_device && !is_counted) with_device.insert(name);
    const bool repeats = std::ranges::any_of(facts.lower, [&](const auto& lower) { return all.contains(lower); });
    const bool stays =
        std::ranges::any_of(all, [&own = facts](const auto& other) { return are_peers(own, other.second); });
    if (!repeats && !stays) without.insert(name);
  }
  if (!with_device.empty()) return with_device;
  std::set<std::string> carriers;
  for (const std::string& name : without) {
    if (!all.at(name).is_tunnel) carriers.insert(name);
  }
  return carriers.empty() ? without : carriers;
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) throw SystemError("cannot list the network interfaces (getifaddrs)", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    const void* bytes = nullptr;
    if (family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (bytes == nullptr || ::inet_ntop(family, bytes, text.data(), text.size()) == nullptr) continue;
    result.push_back(
        {entry->ifa_name, text.data(), (entry->ifa_flags & IFF_LOOPBACK) != 0, prefix_of(entry->ifa_netmask)});
  }
  return result;
}

bool is_for_others(const InterfaceAddress& address) {
  return !address.address.starts_with("fe80:");
}

std::optional<std::int64_t> link_speed(const std::string& interface, const std::filesystem::path& root) {
  const auto text = read_proc_file(root / "sys/class/net" / interface / "speed");  // Mbit/s; "-1": unknown
  const auto megabits = static_cast<std::int64_t>(text ? Fields(*text, '\n').number() : 0);
  if (megabits <= 0 || megabits > 100'000'000) return std::nullopt;
  return megabits * 1'000'000;
}

bool IpNetwork::contains(const IpNetwork& other) const {
  if (v6 != other.v6 || other.prefix < prefix) return false;
  IpNetwork shortened = other;
  shortened.prefix = prefix;
  clear_beyond(shortened);
  return shortened == *this;
}

std::string IpNetwork::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, bytes.data(), text.data(), text.size());
  return std::string(text.data()) + "/" + std::to_string(prefix);
}

std::optional<IpNetwork> network_of(const std::string& address, int prefix) {
  for (const bool v6 : {false, true}) {
    IpNetwork result{.v6 = v6};
    if (::inet_pton(v6 ? AF_INET6 : AF_INET, address.c_str(), result.bytes.data()) != 1) continue;
    if (prefix > result.bits()) return std::nullopt;
    result.prefix = prefix < 0 ? result.bits() : prefix;
    clear_beyond(result);
    return result;
  }
  return std::nullopt;
}

std::optional<IpNetwork> parse_network(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  const int prefix = to_number<int>(text.substr(slash + 1)).value_or(-1);
  return prefix < 0 ? std::nullopt : network_of(text.substr(0, slash), prefix);
}

std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                           const std::string& default_interface, const std::string& where) {
  if (wanted.find('/') != std::string::npos) return in_network(wanted, addresses, where);
  const auto of_interface = [&](const std::string& name) {
    return first(addresses, [&](const InterfaceAddress& entry) { return entry.interface == name; });
  };
  if (!wanted.empty() && wanted != "auto") {
    if (const auto found = of_interface(wanted)) return *found;
    throw ConfigError(where + "this host has no interface '" + wanted + "' that is up and has an address",
                      known(addresses));
  }
  if (const auto found = of_interface(default_interface)) return *found;
  std::set<std::string> outside;
  for (const InterfaceAddress& entry : addresses) {
    if (!entry.loopback && is_for_others(entry)) outside.insert(entry.interface);
  }
  if (outside.empty()) return "127.0.0.1";
  if (outside.size() == 1) return *of_interface(*outside.begin());
  throw ConfigError(where + "this host has several interfaces and no default route: which one reaches the other hosts?",
                    "set DTRAIN_NETWORK_INTERFACE to its name or its network; " + known(addresses));
}

std::string reachable_address(const std::string& wanted, const std::string& where) {
  return choose_address(wanted, interface_addresses(), default_interface(), where);
}

std::string interface_of(const std::string& wanted, const std::string& where) {
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  const std::string address = choose_address(wanted, addresses, default_interface(), where);
  const auto found = std::ranges::find(addresses, address, &InterfaceAddress::address);
  return found == addresses.end() ? "lo" : found->interface;
}

void check_loopback() {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool reached = listener && caller && ::bind(listener.get(), address, size) == 0 &&
                       ::listen(listener.get(), 1) == 0 && ::getsockname(listener.get(), address, &size) == 0 &&
                       (::connect(caller.get(), address, size) == 0 || errno == EINPROGRESS);
  if (reached) return;
  throw ConfigError("this host cannot connect to itself at 127.0.0.1, by which its ranks find each other: " +
                        std::string(std::strerror(errno)),
                    "is its loopback interface down? As root, in this network namespace: ip link set lo up");
}

std::string source_address(const std::string& to) {
  const auto target = network_of(to);
  if (!target) return {};
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (target->v6) {
    auto& name = reinterpret_cast<sockaddr_in6&>(storage);
    name.sin6_family = AF_INET6;
    name.sin6_port = htons(9);
    std::memcpy(&name.sin6_addr, target->bytes.data(), 16);
    size = sizeof name;
  } else {
    auto& name = reinterpret_cast<sockaddr_in&>(storage);
    name.sin_family = AF_INET;
    name.sin_port = htons(9);
    std::memcpy(&name.sin_addr, target->bytes.data(), 4);
    size = sizeof name;
  }
  const UniqueFd fd(::socket(storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), size) != 0) return {};
  size = sizeof storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  const void* bytes = target->v6 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6&>(storage).sin6_addr)
                                 : &reinterpret_cast<sockaddr_in&>(storage).sin_addr;
  char text[INET6_ADDRSTRLEN] = {};
  return ::inet_ntop(storage.ss_family, bytes, text, sizeof text) ? text : std::string();
}

HostIdentity host_identity() {
  HostIdentity identity;
  utsname names{};
  if (::uname(&names) != 0) throw SystemError("cannot read the host's name (uname)", errno);
  identity.name = names.nodename;
  identity.boot_id = trimmed(read_proc_file("/proc/sys/kernel/random/boot_id").value_or(""), "\n");
  if (identity.boot_id.empty()) {
    throw Error("cannot read /proc/sys/kernel/random/boot_id, which tells hosts apart", "mount /proc");
  }
  identity.key = identity.boot_id;
  // Two containers of one machine share its boot id, but not the namespaces by which ranks of one host reach each
  // other: abstract sockets (network), shared memory (IPC) and process ids.
  for (const char* kind : {"net", "ipc", "pid"}) {
    std::error_code error;
    const std::string id = std::filesystem::read_symlink(std::filesystem::path("/proc/self/ns") / kind, error).string();
    identity.key += "/" + (error ? std::string(kind) + ":?" : id);
  }
  return identity;
}

HostNames::HostNames() : name_(lower(host_identity().name)) {
  for (const InterfaceAddress& entry : interface_addresses()) addresses_.insert(entry.address);
}

bool HostNames::contains(const std::string& host) const {
  if (addresses_.contains(host) || host.starts_with("127.")) return true;
  const std::string given = lower(host);
  if (given == "localhost" || given == "::1" || given == name_) return true;
  // The host's own name and the name in the file may each be the whole name or only its first part.
  const bool one_is_short = given.find('.') == std::string::npos || name_.find('.') == std::string::npos;
  const bool is_address = given.find_first_not_of("0123456789.") == std::string::npos;
  return one_is_short && !is_address && first_label(given) == first_label(name_);
}

}  // namespace dtrain::host
