// The network over which the ranks of several hosts communicate: the networks that all hosts have in common, their
// speeds, and the chosen one. Plain values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/host/network.h"

namespace dtrain::launcher {

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
  std::string problem;  // the reason why the network cannot be used; empty: it can be used

  bool usable() const { return problem.empty(); }
  // Returns the value for Open MPI's *_tcp_if_include and DTRAIN_NETWORK_INTERFACE: the interface's name if it is the
  // same on all hosts, else the network.
  std::string value() const;
  std::string describe() const;  // "fast0 (10.71.1.0/24)"
  std::string render() const;    // with its figures or its problem
};

struct NetworkChoice {
  std::vector<CommonNetwork> networks;  // the one that is taken first, then from fast to slow
  std::string reason;                   // for the choice: "the fastest of 2", "dtrain_network_interface: fast0"

  // Empty: all ranks are on one host and need no network.
  std::string value() const { return networks.empty() ? std::string() : networks.front().value(); }
};

// Puts the fastest first. Bandwidths within a tenth of each other count as equal; then the shorter round trip decides
// (again within a tenth), then IPv4 before IPv6, then the order in which the networks were found. Networks that cannot
// be used or were not measured go last.
void sort_by_speed(std::vector<CommonNetwork>& networks);

// Returns a warning that several networks are common, with the key that names one; else empty.
std::string several_networks_warning(const NetworkChoice& choice);

Json to_json(const NetworkChoice& choice);                // plan.json's `network`
std::string render_network(const NetworkChoice& choice);  // for people, a line for each network

// The interfaces of a host. Pure functions derive from them which networks hosts have in common.
struct HostInterfaces {
  std::string host;  // its name in messages
  std::vector<host::InterfaceAddress> addresses;
  std::map<std::string, std::int64_t> speeds;  // bits per second, of interfaces that report a speed
};
Json to_json(const HostInterfaces& interfaces);
HostInterfaces interfaces_of(const Json& json);  // Json::exception if it is malformed

// Returns networks by address, in which every host has an address of its own (a bridge of containers has the same one
// on every host and leads nowhere): IPv4 first; only one network for each set of interfaces. Then networks by name:
// interfaces that every host has, with addresses in different networks. `network` is then empty, and the hosts must
// check whether routes join them.
std::vector<CommonNetwork> common_networks(std::span<const HostInterfaces> hosts);

// Returns the common networks that `wanted` selects: "auto" all, else an interface's name or a network. ConfigError
// begins with `where` and names the host that lacks it; with "auto" and no common network it lists what each has.
std::vector<CommonNetwork> wanted_networks(std::span<const HostInterfaces> hosts, const std::string& wanted,
                                           const std::string& where);

// Chooses the network of a run: asks the hosts which networks they are on, measures the common ones, and takes one.
// Starts `dtrain host-probe` on every host through a remote shell and ends it again; takes a few seconds. One thread.

// The command that runs `command` on `host`, with this process's standard input and output.
using RemoteCommand =
    std::function<std::vector<std::string>(const std::string& host, const std::vector<std::string>& command)>;

// Returns commands that use ssh, or the shell with which mpirun starts its daemons ("ssh -F file"). ssh never asks for
// a password and gives up after a few seconds.
RemoteCommand over_remote_shell(std::vector<std::string> shell);
// Returns commands that use srun, inside an allocation.
RemoteCommand over_srun();

struct NetworkRequest {
  // The hosts of the ranks, as the remote shell names them; "" is this host. This host takes part even if no rank is on
  // it, because the launcher exchanges messages with the ranks.
  std::vector<std::string> hosts;
  std::string wanted = "auto";  // dtrain_network_interface: a name, a network, or auto
  std::string source;           // the file with that key, for errors: "cluster.yaml"
  RemoteCommand remote;
};

// ConfigError names the host that cannot be reached, has no dtrain or another version of it, or lacks the wanted
// interface. If the hosts have no network in common, it lists what each has; if none works, which hosts cannot connect.
NetworkChoice choose_network(const NetworkRequest& request);

}  // namespace dtrain::launcher
