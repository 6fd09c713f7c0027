// Which host this is. Never decided by the host name: containers share names, and names change.
#pragma once

#include <set>
#include <string>

namespace dtrain::host {

struct HostIdentity {
  std::string name;     // uname's node name, for people
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::string key;      // boot id with the ids of the network, IPC and PID namespaces: equal = same host to us
};

HostIdentity host_identity();

// What this host is called by itself and reached at: its name, whole and up to the first dot, localhost, and the
// addresses of its interfaces. Nobody is asked: a name that only a name server knows is not among them.
class HostNames {
 public:
  HostNames();  // SystemError when the kernel does not say
  bool contains(const std::string& host) const;

 private:
  std::string name_;
  std::set<std::string> addresses_;
};

}  // namespace dtrain::host
