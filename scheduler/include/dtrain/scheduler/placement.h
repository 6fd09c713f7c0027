// Which agents an experiment's slots come from: the rules of docs/cluster.md, as pure functions. Which slots are held
// is the ledger's matter, and what a slot is that of cluster_agents.h. Any thread.
//
// One agent that holds all, else agents used whole and of one size, is how Determined places its experiments; whole
// agents of different sizes are ours.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/config/cluster.h"
#include "dtrain/scheduler/core_groups.h"

namespace dtrain::scheduler {

struct AgentSlots {
  std::string id;
  int slots = 0;
  int free = 0;  // 0 to slots
  std::string resource_pool = "default";
  config::AgentSlotType slot_type = config::AgentSlotType::kAuto;  // auto: not known, taken for either
  std::vector<std::string> gpus;  // the UUIDs of its slots' GPUs, by slot; empty: not known, or its slots are cores
  // What its slots are made of where no file declares them: then `slots` is the most that one task may have, `free`
  // counts these, and how many slots they are depends on the request. Empty: its slots are fixed.
  std::vector<CoreUnit> cores;
};

struct SlotRequest {
  int slots = 1;
  int cores_per_slot = 0;       // where slots are made of cores; 0: all cores, divided evenly
  bool is_single_node = false;  // one agent or none
  std::string resource_pool = "default";
  config::AgentSlotType slot_type = config::AgentSlotType::kAuto;  // auto: either
  config::FittingPolicy policy = config::FittingPolicy::kBest;
  bool allow_heterogeneous_fits = true;
};

struct AgentShare {
  std::string agent;
  int slots = 0;
  bool operator==(const AgentShare&) const = default;
};

// In the order of the ranks: the first agent holds rank 0 and those after it.
using Placement = std::vector<AgentShare>;

// How many slots of the request the agent holds with so many of its slots (or cores) free.
int room_for(const AgentSlots& agent, const SlotRequest& request, int free);

// "2 slots", "1 slot x 4 cores", "3 GPU slots"
std::string slots_text(const SlotRequest& request);

// With what is free now, in this order; nothing: it does not fit now.
//  0. Where slots are made of cores, the request takes all of them, and there are several agents of one size, wholly
//     free, among which the slots divide evenly: all of these agents (the nodes of a Slurm allocation).
//  1. One agent with enough free slots. Best fit: the one that is left with the fewest; worst: with the most. Among
//  equals
//     the first by id.
//  2. Agents that are wholly free, all of one size, which the request divides into: the largest size of which there are
//     enough, first by id.
//  3. Where heterogeneous fits are allowed, wholly free agents that together have exactly this many slots: as few as
//     possible, then larger ones first, then by id. Found whenever there are any.
std::optional<Placement> place(std::span<const AgentSlots> agents, const SlotRequest& request);

// Why a request fits nowhere on these agents even if all of them are free, and what would.
struct Refusal {
  std::string reason;              // one line: "12 slots fit nowhere on this cluster"
  std::vector<std::string> rules;  // which rule failed on which agents, a line each
  std::optional<int> below;        // the nearest numbers of slots that fit
  std::optional<int> above;
  std::string remedy;  // those, with the batch sizes that divide

  std::string text() const;  // reason and rules
};

// Nothing: it fits once enough is free. `global_batch_size` is that of the experiment.
std::optional<Refusal> never_fits(std::span<const AgentSlots> agents, const SlotRequest& request,
                                  std::int64_t global_batch_size);

}  // namespace dtrain::scheduler
