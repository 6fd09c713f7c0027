#include "dtrain/host/ip_network.h"

#include <arpa/inet.h>

#include <cstring>

#include "dtrain/base/text.h"

namespace dtrain::host {
namespace {

void clear_beyond(IpNetwork& network) {
  for (int bit = network.prefix; bit < 128; ++bit) {
    network.bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<unsigned char>(~(0x80u >> (bit % 8)));
  }
}

}  // namespace

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

}  // namespace dtrain::host
