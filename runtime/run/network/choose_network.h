// Asks the hosts of a run which networks they are on, measures those they have in common, and takes one. It starts
// `dtrain host-probe` on every host, through a remote shell, and ends it again; a few seconds at most. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "network/network_choice.h"

namespace dtrain::run {

// The command that runs `command` on `host`, with this process's standard input and output.
using RemoteCommand =
    std::function<std::vector<std::string>(const std::string& host, const std::vector<std::string>& command)>;

// By ssh, or what else mpirun starts its daemons with ("ssh -F file"): never asks for a password, gives up after
// seconds.
RemoteCommand over_remote_shell(std::vector<std::string> shell);
// By srun, inside an allocation.
RemoteCommand over_srun();

struct NetworkRequest {
  // Where ranks are, as the remote shell calls them; "" is this host. This host takes part even where no rank is on it:
  // the launcher talks to the ranks.
  std::vector<std::string> hosts;
  std::string wanted = "auto";  // dtrain_network_interface: a name, a network, or auto
  std::string source;           // where that is written, for errors: "cluster.yaml"
  RemoteCommand remote;
};

// ConfigError names the host that cannot be reached, has no dtrain or another version of it, or lacks the wanted
// interface; or says what each host has where nothing is common, or over which network which two hosts cannot connect.
NetworkChoice choose_network(const NetworkRequest& request);

}  // namespace dtrain::run
