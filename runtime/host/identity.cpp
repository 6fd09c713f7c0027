#include "dtrain/host/identity.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "dtrain/base/error.h"
#include "dtrain/host/interfaces.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string first_label(const std::string& name) {
  return name.substr(0, name.find('.'));
}

}  // namespace

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
  // Two containers of one machine share its boot id, but not the namespaces by which ranks of one host reach each
  // other: abstract sockets (network), shared memory (IPC) and process ids.
  for (const char* kind : {"net", "ipc", "pid"}) {
    std::error_code error;
    const std::string id = std::filesystem::read_symlink(std::filesystem::path("/proc/self/ns") / kind, error).string();
    identity.key += "/" + (error ? std::string(kind) + ":?" : id);
  }
  return identity;
}

HostNames::HostNames() : name_(lower(host_identity().name)) {
  for (const InterfaceAddress& one : interface_addresses()) addresses_.insert(one.address);
}

bool HostNames::contains(const std::string& host) const {
  if (addresses_.contains(host) || host.starts_with("127.")) return true;
  const std::string given = lower(host);
  if (given == "localhost" || given == "::1" || given == name_) return true;
  // The host's own name and the name in the file may each be the whole name or only its first part.
  const bool one_is_short = given.find('.') == std::string::npos || name_.find('.') == std::string::npos;
  const bool is_address = given.find_first_not_of("0123456789.") == std::string::npos;
  return one_is_short && !is_address && first_label(given) == first_label(name_);
}

}  // namespace dtrain::host
