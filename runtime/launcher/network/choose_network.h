// Chooses the network of a run: asks the hosts which networks they are on, measures the common ones, and takes one.
// Starts `dtrain host-probe` on every host through a remote shell and ends it again; takes a few seconds. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "network/network_choice.h"

namespace dtrain::run {

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

}  // namespace dtrain::run
