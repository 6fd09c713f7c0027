// Whether a task may start now, behind those before it in the queue: on which slots, or why not. The ledger has the
// order (ledger_impl.cpp). Pure, any thread. Private to scheduler.
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

// The agents that a placement of the request uses for some state of what is free.
std::set<std::string> usable_agents(std::span<const AgentSlots> agents, const SlotRequest& request);

}  // namespace dtrain::scheduler
