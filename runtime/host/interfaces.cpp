#include "dtrain/host/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <bit>
#include <cerrno>
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

std::set<std::string> outside_interfaces(const std::filesystem::path& root) {
  std::set<std::string> all;
  std::set<std::string> with_device;
  for (const auto& [name, counters] : read_network(root)) {
    if (name == "lo") continue;
    all.insert(name);
    std::error_code error;
    if (std::filesystem::exists(root / "sys/class/net" / name / "device", error)) with_device.insert(name);
  }
  return with_device.empty() ? all : with_device;
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
