// The saver's priorities for the processor and the disk, relative to training. Changes that the kernel forbids are
// skipped.
#pragma once

#include <sys/types.h>

namespace dtrain::checkpoints {

// Gives the calling thread only processor time that no other thread wants (the lowest niceness if the kernel would not
// let the user leave idle priority), and the disk when it is idle.
void step_behind_training();
// Gives all threads of the process a share of the processor again. Threads that called step_behind_training() get a
// hundredth of the share of a thread of training, for a user cannot take niceness back.
void leave_idle_priority(pid_t process);

}  // namespace dtrain::checkpoints
