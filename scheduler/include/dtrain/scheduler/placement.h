// Chooses the agents of an experiment's slots: the rules of docs/cluster.md, as pure functions. The ledger knows the
// held slots; cluster_agents.h defines a slot. Any thread.
//
// Two of the rules are Determined's: one agent that holds all slots, else agents of one size that are used whole. The
// rule for agents of different sizes is dtrain's own. A global batch is divided over the slots as well.
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
  config::AgentSlotType slot_type = config::AgentSlotType::kAuto;  // auto: not known, counts as both
  std::vector<std::string> gpus;  // the UUIDs of its slots' GPUs, by slot; empty: not known, or its slots are cores
  // The cores that its slots are made of if no file declares slots. Then `slots` is the most that one task may have,
  // `free` counts cores, and the request determines the number of slots. Empty: its slots are fixed.
  std::vector<CoreUnit> cores;
};

struct SlotRequest {
  int slots = 1;
  int cores_per_slot = 0;       // if slots are made of cores; 0: all cores, divided evenly
  bool is_single_node = false;  // true: only a single agent fits
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

// Shares in the order of the ranks: the first agent holds rank 0 and the following ranks.
using Placement = std::vector<AgentShare>;

// Returns the number of slots of the request that fit on the agent if `free` of its slots (or cores) are free.
int room_for(const AgentSlots& agent, const SlotRequest& request, int free);

// Returns "2 slots", "1 slot x 4 cores" or "3 GPU slots".
std::string slots_text(const SlotRequest& request);

// Places the request on the free slots, by the first of these rules that fits. Empty: it does not fit now.
//  0. If slots are made of cores and the request takes all cores: all agents, if there are several, of one size,
//     entirely free, and the slots divide evenly among them (the nodes of a Slurm allocation).
//  1. One agent with enough free slots. Best fit: the one that is left with the fewest; worst fit: with the most. Of
//     equals the first by id.
//  2. Agents of one size that are entirely free, if that size divides the request: of the largest size of which there
//     are enough, the first by id.
//  3. If heterogeneous fits are allowed, entirely free agents that together have exactly this many slots: as few as
//     possible, then larger ones first, then by id. The search is exact.
std::optional<Placement> place(std::span<const AgentSlots> agents, const SlotRequest& request);

// The reasons for which a request never fits on these agents, even if all are free, and the requests that would fit.
struct Refusal {
  std::string reason;              // one line: "12 slots fit nowhere on this cluster"
  std::vector<std::string> rules;  // one line for each rule: the cause of its failure, and the agents
  std::optional<int> below;        // the nearest numbers of slots that fit
  std::optional<int> above;
  std::string remedy;  // `below` and `above`, with batch sizes that they divide

  std::string text() const;  // reason and rules
};

// Returns why a request never fits; empty: it fits once enough is free. `global_batch_size` is that of the experiment.
std::optional<Refusal> never_fits(std::span<const AgentSlots> agents, const SlotRequest& request,
                                  std::int64_t global_batch_size);

inline constexpr int kMostSlots = 65536;  // of one trial, and of one agent; the experiment's schema has the same bound

}  // namespace dtrain::scheduler
