#include "owner.h"

#include <csignal>
#include <filesystem>
#include <system_error>

#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/fd.h"
#include "dtrain/base/text.h"
#include "dtrain/host/identity.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/processes.h"
#include "dtrain/scheduler/rank_mark.h"

namespace dtrain::scheduler {

namespace fs = std::filesystem;

Place this_place() {
  std::error_code code;
  return {host::host_identity().boot_id, fs::read_symlink("/proc/self/ns/pid", code).string()};
}

ProcessKey key_of(pid_t pid, const Place& here) {
  return {here, pid, host::start_ticks(pid)};
}

Life life_of(const ProcessKey& process, const Place& here) {
  if (process.place.boot != here.boot) return Life::kGone;
  if (process.place.namespace_ != here.namespace_) return Life::kUnknown;
  // A process that had ended before its start time was read has ticks 0.
  return process.ticks != 0 && host::start_ticks(process.pid) == process.ticks ? Life::kAlive : Life::kGone;
}

bool has_ranks(const ProcessKey& launcher) {
  const std::string wanted = std::string(1, '\0') + kRankMark + "=" + std::to_string(launcher.pid) + "." +
                             std::to_string(launcher.ticks) + ".";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename();
    const pid_t pid = to_number<pid_t>(name).value_or(0);
    if (pid <= 0 || pid == ::getpid() || ::getpgid(pid) != pid) continue;
    const auto variables = host::read_proc_file(entry.path() / "environ");
    if (!variables) continue;
    const std::string environment = std::string(1, '\0') + *variables;
    const auto at = environment.find(wanted);
    if (at == std::string::npos) continue;
    auto session = std::string_view(environment).substr(at + wanted.size());
    if (::getsid(pid) == take_number<pid_t>(session).value_or(-1) && host::start_ticks(pid) != 0) return true;
  }
  return false;
}

std::string rank_mark(pid_t launcher) {
  return std::to_string(launcher) + "." + std::to_string(host::start_ticks(launcher)) + "." +
         std::to_string(::getsid(launcher));
}

void kill_process(const ProcessKey& process, const Place& here) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!handle || life_of(process, here) != Life::kAlive)
    return;  // checked after the handle was made, so the handle is of this process
  ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
}

}  // namespace dtrain::scheduler
