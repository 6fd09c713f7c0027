#include "dtrain/host/reachable_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/text.h"
#include "dtrain/host/ip_network.h"
#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {
namespace {

std::string known(const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& one : addresses) {
    if (is_for_others(one)) parts.push_back(one.interface + " (" + one.address + ")");
  }
  return parts.empty() ? "this host has no address" : "this host has " + join(parts, ", ");
}

template <class Wanted>
std::optional<std::string> first(const std::vector<InterfaceAddress>& addresses, const Wanted& is_wanted) {
  // IPv4 comes first: if a host has both, other hosts are more likely to reach its IPv4 address.
  for (const bool v6 : {false, true}) {
    for (const InterfaceAddress& one : addresses) {
      if (is_for_others(one) && (one.address.find(':') != std::string::npos) == v6 && is_wanted(one))
        return one.address;
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
  const auto found = first(addresses, [&](const InterfaceAddress& one) {
    const auto address = network_of(one.address);
    return address && network->contains(*address);
  });
  if (!found) throw ConfigError(where + "no address of this host is in " + wanted, known(addresses));
  return *found;
}

}  // namespace

std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                           const std::string& default_interface, const std::string& where) {
  if (wanted.find('/') != std::string::npos) return in_network(wanted, addresses, where);
  const auto of_interface = [&](const std::string& name) {
    return first(addresses, [&](const InterfaceAddress& one) { return one.interface == name; });
  };
  if (!wanted.empty() && wanted != "auto") {
    if (const auto found = of_interface(wanted)) return *found;
    throw ConfigError(where + "this host has no interface '" + wanted + "' that is up and has an address",
                      known(addresses));
  }
  if (const auto found = of_interface(default_interface)) return *found;
  std::set<std::string> outside;
  for (const InterfaceAddress& one : addresses) {
    if (!one.loopback && is_for_others(one)) outside.insert(one.interface);
  }
  if (outside.empty()) return "127.0.0.1";
  if (outside.size() == 1) return *of_interface(*outside.begin());
  throw ConfigError(where + "this host has several interfaces and no default route: which one reaches the other hosts?",
                    "set DTRAIN_NETWORK_INTERFACE to its name or its network; " + known(addresses));
}

std::string default_interface(const std::filesystem::path& root) {
  const std::string text = read_proc_file(root / "proc/net/route").value_or("");
  Fields lines(text, '\n');
  lines.skip(1);  // the heading
  while (const auto line = lines.next()) {
    Fields fields(*line, '\t');
    std::string name(fields.next().value_or(""));
    if (fields.next().value_or("") == "00000000") return name;
  }
  return {};
}

std::string reachable_address(const std::string& wanted, const std::string& where) {
  return choose_address(wanted, interface_addresses(), default_interface(), where);
}

std::string interface_of(const std::string& wanted, const std::string& where) {
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  const std::string address = choose_address(wanted, addresses, default_interface(), where);
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const InterfaceAddress& one) { return one.address == address; });
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

}  // namespace dtrain::host
