// Whether a task may start now, behind those before it in the queue: on which slots, or why not; and which running
// tasks have to yield to it. The ledger has the order (ledger_impl.cpp). Pure, any thread. Private to scheduler.
//
// Tasks queue by priority, then by age. A task starts when place() finds room for it, on slots that none of those
// before it could use on any placement: so a later task never makes an earlier one wait longer (conservative backfill,
// on whole agents because it is not known when a task will end). Earlier tasks that wait only for others of their own
// experiment (max_slots) reserve nothing.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dtrain/scheduler/task.h"

namespace dtrain::scheduler {

struct QueuedTask {
  TaskId id = 0;
  const TaskRequest* request = nullptr;
};

// Slots that are in use, by the names of SlotKeys.
struct Holder {
  TaskId task = 0;
  std::string name;
  int slots = 0;  // of the task, all together
};
using HeldSlots = std::map<std::string, std::map<int, Holder>>;

// By what the ledger knows a slot: its agent and its index there (of slots that are made of cores, each core), or its
// GPU (with the index 0) where that is known. A GPU has several indices, of which CUDA_VISIBLE_DEVICES and cluster
// files decide, but only one UUID; and a machine's GPUs and cores are slots of one agent, but not the same slots.
struct SlotKey {
  std::string name;
  int index = 0;
  auto operator<=>(const SlotKey&) const = default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
};
SlotKey slot_key(const std::string& agent, const std::vector<std::string>& gpus, std::size_t gpu, int index);
// All that a claim holds, each once: slots that share cores are of one task.
std::vector<SlotKey> keys_of(const Claim& claim);

struct Verdict {
  std::optional<Claim> claim;
  Waiting waiting;  // where there is no claim
};

// `queue` holds, in order, those before the task and then the task itself.
Verdict judge(std::span<const QueuedTask> queue, const HeldSlots& held);

// A task that holds slots, which it may have to give up so that one with a lower priority number can start.
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
