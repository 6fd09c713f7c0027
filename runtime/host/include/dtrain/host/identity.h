// Which host this is. Never decided by the host name: containers share names, and names change.
#pragma once

#include <string>

namespace dtrain::host {

struct HostIdentity {
  std::string name;     // uname's node name, for people
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::string key;      // boot id with the ids of the network, IPC and PID namespaces: equal = same host to us
};

HostIdentity host_identity();

}  // namespace dtrain::host
