// How the saver competes with training for the processor and the disk. Where the kernel forbids a change, there is
// none.
#pragma once

#include <sys/types.h>

namespace dtrain::checkpoint {

// The calling thread, and those that it starts from then on, get what training leaves.
void step_behind_training();
// All threads of that process, and those that they start, get as much as others.
void set_normal_priority(pid_t process);

}  // namespace dtrain::checkpoint
