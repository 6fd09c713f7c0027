#include "saver/priority.h"

#include <filesystem>
#include <string>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/text.h"

namespace dtrain::checkpoints {
namespace {

constexpr int kIoIdle = 3 << 13;  // IOPRIO_CLASS_IDLE
constexpr int kIoByNice = 0;      // IOPRIO_CLASS_NONE

void set_priority(pid_t thread, int policy, int io_priority) {
  constexpr int kWhoProcess = 1;  // IOPRIO_WHO_PROCESS, of one thread
  const sched_param parameters{};
  ::sched_setscheduler(thread, policy, &parameters);
  ::syscall(SYS_ioprio_set, kWhoProcess, thread, io_priority);
}

// True if threads may leave idle priority. Without this right a thread keeps it until it ends, even if a rank waits.
bool may_leave_idle_priority() {
  rlimit nice{};
  return ::geteuid() == 0 || (::getrlimit(RLIMIT_NICE, &nice) == 0 && nice.rlim_cur >= 1);
}

}  // namespace

void step_behind_training() {
  constexpr int kLowest = 19;
  const auto thread = static_cast<pid_t>(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kLowest);  // for this thread alone
  set_priority(thread, may_leave_idle_priority() ? SCHED_IDLE : SCHED_OTHER, kIoIdle);
}

void leave_idle_priority(pid_t process) {
  std::error_code code;
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator task(tasks, code); !code && task != std::filesystem::directory_iterator();
       task.increment(code)) {
    const std::string name = task->path().filename();
    if (const auto thread = to_number<pid_t>(name)) set_priority(*thread, SCHED_OTHER, kIoByNice);
  }
}

}  // namespace dtrain::checkpoints
