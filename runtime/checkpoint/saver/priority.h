// How the saver competes with training for the processor and the disk. Where the kernel forbids a change, there is
// none.
#pragma once

#include <sys/types.h>

namespace dtrain::checkpoints {

// The calling thread gets what training leaves: processor time when no other thread wants it (the lowest niceness
// where the kernel would not let the user take that back), and the disk.
void step_behind_training();
// All threads of that process get a share of the processor again. Those that had stepped behind training get a small
// one, a hundredth of what a thread of training gets: a user cannot take niceness back.
void leave_idle_priority(pid_t process);

}  // namespace dtrain::checkpoints
