// The request of a trial: slots, their kind, and its place in the queue. Plain values and their keys.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/config/keys.h"

namespace dtrain::config {

// kAuto: GPUs if there are enough, else CPUs. The launcher decides this; without a launcher the ranks decide together.
enum class SlotType { kAuto, kCpu, kCuda };
inline constexpr std::array kSlotTypes{Word<SlotType>{"auto", SlotType::kAuto}, Word<SlotType>{"cpu", SlotType::kCpu},
                                       Word<SlotType>{"cuda", SlotType::kCuda}};

// The numbers of slots with which the queue may let a task train.
struct Elastic {
  int min = 1;
  std::optional<int> max;  // empty: slots_per_trial
  bool operator==(const Elastic&) const = default;
};

inline void declare_keys(Keys& keys, Elastic& e) {
  keys.integer({"min", "The fewest slots with which the run may train."}, e.min, {1, 65536});
  keys.integer({"max", "The most slots that the run may get; null: slots_per_trial."}, e.max, {1, 65536});
}

struct Resources {
  int slots_per_trial = 1;         // 0: auto
  std::optional<Elastic> elastic;  // min to max includes slots_per_trial
  int cores_per_slot = 0;          // 0: auto
  SlotType slot_type = SlotType::kAuto;
  bool is_single_node = false;
  int priority = 42;  // 1 to 99; lower ones go first
  std::string resource_pool = "default";
  std::optional<int> max_slots;  // of all running trials of this name together; at least slots_per_trial
  bool operator==(const Resources&) const = default;

  // Returns the most slots with which the run may train.
  int most_slots() const { return elastic ? elastic->max.value_or(slots_per_trial) : slots_per_trial; }
};

// Sets slots_per_trial where `elastic` alone is given.
void resolve(Section& section, Resources& resources);
void check_together(Section& section, const Resources& resources);
Json what_elastic_needs();

inline void declare_keys(Keys& keys, Resources& r) {
  keys.auto_or_integer(
      {"slots_per_trial", "The number of ranks: one process on each slot.",
       "`auto`: on one machine whose slots no file declares, the first launch tries how its cores are "
       "best divided among ranks and threads ([more](performance.md#ranks-or-threads)); else all GPUs, "
       "or all slots that a file declares, of one machine."},
      r.slots_per_trial, {1, 65536});
  keys.mapping({"elastic",
                "Between which numbers of slots the queue may change the run while it trains; slots_per_trial is the "
                "number that it asks for, and without that key elastic.max is, or elastic.min.",
                "Only for `dtrain launch` without Slurm ([more](launching.md#elastic-tasks))."},
               r.elastic);
  keys.auto_or_integer({"cores_per_slot", "How many cores each rank gets.",
                        "`auto`: all that the machine has, divided evenly among the ranks; on slots that a file "
                        "declares, all cores of the slot. A number: so many, and other experiments may run beside it "
                        "on the others ([more](cluster.md#slots-cores-and-threads))."},
                       r.cores_per_slot, {1, 65536});
  keys.choice({"slot_type", "What a slot is: a GPU (cuda) or a share of the cores (cpu).",
               "`auto`: GPUs if the resource pool has any, otherwise cores ([more](cluster.md#gpus-or-cores))."},
              r.slot_type, kSlotTypes);
  keys.boolean({"is_single_node", "Whether all slots must be on one machine.",
                "The experiment is refused if no agent has so many slots."},
               r.is_single_node);
  keys.integer({"priority", "The experiment's place in the queue: lower numbers go first."}, r.priority, {1, 99});
  keys.text({"resource_pool", "The pool of agents on which the experiment is placed.",
             "[How slots are placed](cluster.md#how-slots-are-placed)."},
            r.resource_pool, kName);
  keys.integer({"max_slots",
                "The most slots that all running tasks with this experiment's name may hold together; at least "
                "slots_per_trial."},
               r.max_slots, {1, 65536});
  keys.when_read([&](Section& section) {
    resolve(section, r);
    check_together(section, r);
  });
  keys.schema_rule(what_elastic_needs);
}

}  // namespace dtrain::config
