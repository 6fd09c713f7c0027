// What a trial asks of the machines: slots, their kind, its place in the queue. Plain values.
#pragma once

#include <optional>
#include <string>

namespace dtrain::config {

enum class SlotType { kAuto, kCpu };

// How the ranks' memory and messages travel. kAuto: kShm on one host, over several kMpi with one rank each,
// kHierarchical with more.
enum class Backend { kAuto, kShm, kMpi, kHierarchical };

struct Resources {
  int slots_per_trial = 1;
  SlotType slot_type = SlotType::kAuto;
  bool is_single_node = false;
  int priority = 42;  // 1 to 99; lower ones go first
  std::string resource_pool = "default";
  std::optional<int> max_slots;  // that all running trials of this name hold together; at least slots_per_trial
  bool operator==(const Resources&) const = default;
};

}  // namespace dtrain::config
