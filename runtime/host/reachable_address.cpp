#include "dtrain/host/reachable_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "fields.h"

namespace dtrain::host {
namespace {

// An address of either family as bytes.
struct Bytes {
  int family = 0;
  std::array<unsigned char, 16> bytes{};
  int bits() const { return family == AF_INET ? 32 : 128; }
};

std::optional<Bytes> parse(const std::string& text) {
  for (const int family : {AF_INET, AF_INET6}) {
    Bytes result{family, {}};
    if (::inet_pton(family, text.c_str(), result.bytes.data()) == 1) return result;
  }
  return std::nullopt;
}

bool within(const Bytes& address, const Bytes& network, int prefix) {
  if (address.family != network.family) return false;
  const auto whole = static_cast<std::size_t>(prefix / 8);
  if (std::memcmp(address.bytes.data(), network.bytes.data(), whole) != 0) return false;
  const int rest = prefix % 8;
  if (rest == 0) return true;
  const int mask = 0xff << (8 - rest) & 0xff;
  return (address.bytes[whole] & mask) == (network.bytes[whole] & mask);
}

// Link-local IPv6 addresses mean nothing to others without an interface of theirs.
bool usable(const InterfaceAddress& address) {
  return address.address.rfind("fe80:", 0) != 0;
}

std::string known(const std::vector<InterfaceAddress>& addresses) {
  std::vector<std::string> parts;
  for (const InterfaceAddress& one : addresses) {
    if (usable(one)) parts.push_back(one.interface + " (" + one.address + ")");
  }
  return parts.empty() ? "this host has no address" : "this host has " + join(parts, ", ");
}

template <class Wanted>
std::optional<std::string> first(const std::vector<InterfaceAddress>& addresses, const Wanted& is_wanted) {
  // IPv4 first: where a host has both, the others are likelier to reach that.
  for (const bool v6 : {false, true}) {
    for (const InterfaceAddress& one : addresses) {
      if (usable(one) && (one.address.find(':') != std::string::npos) == v6 && is_wanted(one)) return one.address;
    }
  }
  return std::nullopt;
}

std::string in_network(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                       const std::string& where) {
  const auto slash = wanted.find('/');
  const auto network = parse(wanted.substr(0, slash));
  const std::string length = wanted.substr(slash + 1);
  int prefix = -1;
  const auto [end, code] = std::from_chars(length.data(), length.data() + length.size(), prefix);
  if (!network || code != std::errc() || end != length.data() + length.size() || prefix < 0 ||
      prefix > network->bits()) {
    throw ConfigError(where + wanted + " is not a network", "write it as 10.1.0.0/16, or name an interface");
  }
  const auto found = first(addresses, [&](const InterfaceAddress& one) {
    const auto address = parse(one.address);
    return address && within(*address, *network, prefix);
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
    if (!one.loopback && usable(one)) outside.insert(one.interface);
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

}  // namespace dtrain::host
