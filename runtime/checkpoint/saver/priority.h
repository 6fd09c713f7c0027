// How the saver competes with training for the processor and the disk.
#pragma once

namespace dtrain::checkpoint {

enum class Priority { kBehindTraining, kNormal };

// For the calling thread and those that it starts from then on. Where the kernel forbids it, nothing changes.
void set_priority(Priority priority);

}  // namespace dtrain::checkpoint
