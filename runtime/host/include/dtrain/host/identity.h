// Identifies this host. The host name is never used for that: containers share names, and names change.
#pragma once

#include <set>
#include <string>

namespace dtrain::host {

struct HostIdentity {
  std::string name;     // uname's node name, for people
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::string key;      // boot id and ids of the network, IPC and PID namespaces; equal keys: one host
};

HostIdentity host_identity();

// The names of this host that need no name server: its host name, whole and up to the first dot, localhost, and the
// addresses of its interfaces.
class HostNames {
 public:
  HostNames();  // SystemError when the kernel does not report them
  bool contains(const std::string& host) const;

 private:
  std::string name_;
  std::set<std::string> addresses_;
};

}  // namespace dtrain::host
