// Decides whether a task may start now, behind the earlier tasks in the queue, on which slots, or why not, and which
// running tasks must yield to it, and which of them gets more. The ledger has the order (ledger_impl.cpp). Pure, any
// thread. Private to scheduler.
//
// Tasks queue by priority, then by age. A task starts when place() finds room for it, on slots that no earlier task
// could use in any placement. So a later task never makes an earlier one wait longer (conservative backfill, on whole
// agents because it is not known when a task will end). Earlier tasks that wait only for others of their own experiment
// (max_slots) reserve nothing.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/scheduler/ledger.h"

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

// The ledger's key of a slot: its agent and its index there (for slots made of cores, each core), or its GPU's UUID
// (with index 0) if that is known. CUDA_VISIBLE_DEVICES and cluster files may give one GPU several indices, but it has
// only one UUID. A machine's GPUs and cores are slots of one agent, but not the same slots.
struct SlotKey {
  std::string name;
  int index = 0;
  auto operator<=>(const SlotKey&) const = default;  // NOLINT(modernize-use-nullptr): of clang-tidy 14
};
SlotKey slot_key(const std::string& agent, const std::vector<std::string>& gpus, std::size_t gpu, int index);
// Returns the keys of a claim, each once: slots that share cores belong to one task.
std::vector<SlotKey> keys_of(const Claim& claim);

struct Verdict {
  std::optional<Claim> claim;
  Waiting waiting;  // set if there is no claim
};

// Judges the last task of `queue`, behind the earlier tasks in their order. It gets more slots than it asks for only if
// none of `later` could use them.
Verdict judge(std::span<const QueuedTask> queue, const HeldSlots& held, std::span<const QueuedTask> later = {});

// A task with slots, which it may have to give up so that a task with a lower priority number can start.
struct RunningTask {
  TaskId id = 0;
  int priority = 42;
  Nanoseconds started{0};   // time at which it got its slots
  bool can_yield = false;   // may be asked to save and to give them up for a while
  bool is_leaving = false;  // it stops, or was asked to already
  // Of an elastic task, which goes on with other slots: its request, the slots that it holds, and those that it keeps
  // because it was asked for the others already.
  const TaskRequest* request = nullptr;
  Claim claim;
  std::optional<Claim> keeps;

  bool is_elastic() const { return request != nullptr; }
};

// What a running task is asked for.
struct Yield {
  TaskId id = 0;
  Claim keeps;  // it goes on with these slots; empty: it gives up all of them for a while
  bool operator==(const Yield&) const = default;
};

// Returns what to ask of running tasks so that the last of `queue` gets the slots that it asks for. Elastic tasks give
// up some of theirs; only if that does not let it start at all, tasks stop. Of those that may be asked, the ones with
// the largest priority number give first, the youngest first among equal ones, and no task gives more than is needed.
// Empty: it fits without asking, or asking does not help.
std::vector<Yield> choose_yields(std::span<const QueuedTask> queue, const HeldSlots& held,
                                 std::span<const RunningTask> running);

// Returns a part of an elastic task's slots, so many of them; empty: the request cannot be placed on a part of them.
std::optional<Claim> part_of(const RunningTask& task, int slots);

// Returns the slots with which a running task that may have more would go on: its own, and free ones that no task of
// `waiting` could use, nor one of `running` that is before it and may have more. Empty: it gets no more.
std::optional<Claim> larger_claim(TaskId id, std::span<const QueuedTask> waiting, const HeldSlots& held,
                                  std::span<const RunningTask> running);

}  // namespace dtrain::scheduler
