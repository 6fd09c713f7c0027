// A task: one launch, as the ledger records it from its submission on. Plain values; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

enum class TaskState { kQueued, kStarting, kRunning, kStopping, kDone, kFailed, kInterrupted, kPaused };

// Returns "queued", "starting", …
std::string to_string(TaskState state);
// True if the task is done, failed or interrupted: it then holds no slots and never changes again.
bool has_ended(TaskState state);

using TaskId = std::int64_t;  // 1, 2, 3, … in the order of submission

// The request of a launch.
struct TaskRequest {
  std::string name;  // of the experiment; max_slots counts all tasks of this name
  int priority = 42;
  SlotRequest slots;
  std::optional<int> max_slots;    // the most that running tasks of this name may hold together
  std::vector<AgentSlots> agents;  // the cluster as this launch sees it; the ledger adds the free slots
  std::filesystem::path run_dir;
  // Another system (Slurm) queues and places the task. In this ledger it waits for no other task and holds no slots.
  bool placed_by_others = false;
  bool can_yield = false;   // it can save, give up its slots and go on later: `dtrain task pause`
  bool preemption = false;  // tasks with a lower priority number may make it do so, and it may make others do so
};

// Slots of one agent, by their index there, ascending.
struct ClaimedShare {
  std::string agent;
  std::vector<int> slots;         // if they are made of cores: 0, 1, … of this task
  std::vector<std::string> gpus;  // the UUIDs of their GPUs; empty: not known, or they are cores
  CoreGroups cores;               // for each slot the cores that it is made of, by CoreUnit::number; empty: fixed slots
  bool operator==(const ClaimedShare&) const = default;
};
using Claim = std::vector<ClaimedShare>;  // in the order of the ranks

// Takes this many slots of the request from the free cores of an agent whose slots are made of cores. A request for all
// cores divides all of the agent's cores.
ClaimedShare share_of_cores(const AgentSlots& agent, const SlotRequest& request, int slots,
                            std::span<const CoreUnit> free);

// The reason for which a queued task has not started.
struct Waiting {
  std::vector<TaskId> behind;  // tasks that hold slots that it needs, or are before it in the queue
  std::string reason;          // "task 3 (mnist) holds 2 of 2 slots of node-1"
  bool operator==(const Waiting&) const = default;
};

struct StateChange {
  TaskState state = TaskState::kQueued;
  Nanoseconds time{0};  // wall clock
  std::string reason;
};

struct Task {
  TaskId id = 0;
  std::string name;
  TaskState state = TaskState::kQueued;
  std::string reason;  // reason for this state; may be empty
  int priority = 42;
  int slots = 0;
  int cores_per_slot = 0;  // as requested; 0: all, or not known any more
  Claim claim;             // the slots that it holds, or held at its end; empty while queued
  std::string run_dir;
  pid_t launcher_pid = 0;
  Nanoseconds submitted{0};            // wall clock
  std::optional<Nanoseconds> started;  // when it got its slots
  std::optional<Nanoseconds> ended;
  std::optional<int> exit_code;    // of the launch; set once it has ended
  std::optional<Waiting> waiting;  // while queued
};

}  // namespace dtrain::scheduler
