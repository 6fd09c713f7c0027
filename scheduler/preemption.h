// Which tasks have to give up their slots so that one with a lower priority number can start. Pure; any thread. Private
// to scheduler.
#pragma once

#include <span>
#include <vector>

#include "queue.h"

namespace dtrain::scheduler {

// A task that holds slots.
struct RunningTask {
  TaskId id = 0;
  int priority = 42;
  Nanoseconds started{0};   // when it got its slots
  bool can_yield = false;   // may be asked to save and to give them up for a while
  bool is_leaving = false;  // it stops, or was asked to already
};

// The tasks to ask so that the last of `queue` fits: the largest priority numbers first, the youngest first among equal
// ones, and only as many as are needed. Empty: it fits without asking, or asking does not help.
std::vector<TaskId> choose_victims(std::span<const QueuedTask> queue, const HeldSlots& held,
                                   std::span<const RunningTask> running);

}  // namespace dtrain::scheduler
