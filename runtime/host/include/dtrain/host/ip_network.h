// IP addresses and networks (CIDR) of both families, as numbers. Plain values; any thread.
#pragma once

#include <array>
#include <optional>
#include <string>

namespace dtrain::host {

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

}  // namespace dtrain::host
