#include "dtrain/host/identity.h"

#include <sys/utsname.h>

#include <cerrno>

#include "dtrain/base/error.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {

HostIdentity host_identity() {
  HostIdentity identity;
  utsname names{};
  if (::uname(&names) != 0) throw SystemError("cannot read the host's name (uname)", errno);
  identity.name = names.nodename;
  identity.boot_id = read_proc_file("/proc/sys/kernel/random/boot_id").value_or("");
  while (!identity.boot_id.empty() && identity.boot_id.back() == '\n') identity.boot_id.pop_back();
  if (identity.boot_id.empty()) {
    throw Error("cannot read /proc/sys/kernel/random/boot_id, which tells hosts apart", "mount /proc");
  }
  identity.key = identity.boot_id;
  // Two containers of one machine share its boot id, but not what ranks of one host need to meet each other: abstract
  // sockets (network), shared memory (IPC) and process ids.
  for (const char* kind : {"net", "ipc", "pid"}) {
    std::error_code error;
    const std::string id = std::filesystem::read_symlink(std::filesystem::path("/proc/self/ns") / kind, error).string();
    identity.key += "/" + (error ? std::string(kind) + ":?" : id);
  }
  return identity;
}

}  // namespace dtrain::host
