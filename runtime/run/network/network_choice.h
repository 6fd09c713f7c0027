// Which network the ranks of several hosts communicate over: the networks that all hosts have in common, their speeds,
// and the one that is taken. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"

namespace dtrain::run {

// One host's end of a network.
struct NetworkEnd {
  std::string host;  // its name in messages
  std::string interface;
  std::string address;
  std::optional<std::int64_t> link_bits_per_second;  // as the device declares it
  bool operator==(const NetworkEnd&) const = default;
};

// Measured from every host to the next, all at once as in a ring all-reduce; the worst values.
struct NetworkFigures {
  double bits_per_second = 0;
  Nanoseconds round_trip{0};
};

// A network that all hosts are on.
struct CommonNetwork {
  std::string network;           // "10.71.1.0/24"; empty: each host is in another one, joined by routes
  std::vector<NetworkEnd> ends;  // in the order of the hosts
  std::optional<NetworkFigures> figures;
  std::string problem;  // why it cannot be used; empty: it can

  bool usable() const { return problem.empty(); }
  // The value for Open MPI's *_tcp_if_include and DTRAIN_NETWORK_INTERFACE: the interface's name if it is the same on
  // all hosts, else the network.
  std::string value() const;
  std::string describe() const;  // "fast0 (10.71.1.0/24)"
  std::string render() const;    // with its figures or its problem
};

struct NetworkChoice {
  std::vector<CommonNetwork> networks;  // the one that is taken first, then from fast to slow
  std::string reason;                   // for taking it: "the fastest of 2", "dtrain_network_interface: fast0"

  // Empty: all ranks are on one host and need no network.
  std::string value() const { return networks.empty() ? std::string() : networks.front().value(); }
};

// Puts the fastest first. Bandwidths within a tenth of each other count as equal; then the shorter round trip decides
// (again within a tenth), then IPv4 before IPv6, then the order in which the networks were found. Networks that cannot
// be used or were not measured go last.
void sort_by_speed(std::vector<CommonNetwork>& networks);

// A warning that several networks are common, with the key that names one; else empty.
std::string several_networks_warning(const NetworkChoice& choice);

Json to_json(const NetworkChoice& choice);                // plan.json's `network`
std::string render_network(const NetworkChoice& choice);  // for people, a line for each network

}  // namespace dtrain::run
