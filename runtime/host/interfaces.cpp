#include "dtrain/host/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <iterator>
#include <memory>

#include "dtrain/base/error.h"
#include "dtrain/host/proc_file.h"
#include "fields.h"

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

namespace {

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
    InterfaceFacts& one = result[name];
    const fs::path folder = root / "sys/class/net" / name;
    std::error_code error;
    one.has_device = fs::exists(folder / "device", error);
    one.master = fs::read_symlink(folder / "master", error).filename().string();
    const auto number = [&](const char* file) {
      return Fields(read_proc_file(folder / file).value_or(""), '\n').number();
    };
    one.is_tunnel = std::find(std::begin(kTunnels), std::end(kTunnels), number("type")) != std::end(kTunnels);
    one.index = number("ifindex");
    one.link = number("iflink");
    one.counters = counters;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      constexpr std::string_view kLower = "lower_";
      const std::string file = entry->path().filename().string();
      if (file.starts_with(kLower)) one.lower.push_back(file.substr(kLower.size()));
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

}  // namespace

std::set<std::string> outside_interfaces(const std::filesystem::path& root) {
  const std::map<std::string, InterfaceFacts> all = read_interfaces(root);
  std::set<std::string> with_device, without;
  for (const auto& [name, one] : all) {
    const auto master = all.find(one.master);
    // The master of this port may have a device of its own, and then counts the port's bytes too (a virtual function in
    // a virtual machine of Azure).
    const bool is_counted = master != all.end() && master->second.has_device;
    if (one.has_device && !is_counted) with_device.insert(name);
    const bool repeats =
        std::any_of(one.lower.begin(), one.lower.end(), [&](const auto& l) { return all.contains(l); });
    const bool stays =
        std::any_of(all.begin(), all.end(), [&facts = one](const auto& o) { return are_peers(facts, o.second); });
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

}  // namespace dtrain::host
