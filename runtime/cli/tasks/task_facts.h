// The fields of a task of the ledger, for the commands that print it. Plain functions; any thread.
#pragma once

#include <optional>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/scheduler/task.h"

namespace dtrain::cli {

// Returns a time of the wall clock as text; null: there is none.
Json time_of(const std::optional<Nanoseconds>& wall);
// Returns the reason for the task's state: why a queued task waits, why a task has ended. Empty: no reason.
const std::string& reason_of(const scheduler::Task& task);

// Returns the cores of each of the task's slots: those it holds or held, else those it asks for; the least, if slots
// have unlike numbers. Null: the task takes all cores, or its slots are not made of cores.
Json cores_per_slot(const scheduler::Task& task);
// "2 slots x 16 cores", "3 slots"
std::string slots_text(const scheduler::Task& task);

// The help of the argument that run::find_task() reads.
inline constexpr const char* kTaskHelp = "The task: its number (127 or task:127), or its run under ./runs (run:3)";

// "running", "done (exit code 0)", "failed (exit code 1): rank 1 was killed"
std::string state_text(const scheduler::Task& task);

}  // namespace dtrain::cli
