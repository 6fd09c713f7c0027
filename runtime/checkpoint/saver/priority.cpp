#include "saver/priority.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dtrain::checkpoint {

void set_priority(Priority priority) {
  constexpr int kWhoProcess = 1;  // IOPRIO_WHO_PROCESS
  constexpr int kIdleClass = 3 << 13;
  constexpr int kByNice = 0;  // IOPRIO_CLASS_NONE
  const bool normal = priority == Priority::kNormal;
  const sched_param parameters{};
  ::sched_setscheduler(0, normal ? SCHED_OTHER : SCHED_IDLE, &parameters);
  ::syscall(SYS_ioprio_set, kWhoProcess, 0, normal ? kByNice : kIdleClass);
}

}  // namespace dtrain::checkpoint
