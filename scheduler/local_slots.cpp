#include "dtrain/scheduler/local_slots.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/cpu.h"

namespace dtrain::scheduler {
namespace {

// Divides units, which are cores, or single logical CPUs if there are too few cores. Slot i gets the units from
// i*n/count on: shares differ by one unit at most, and neighbours stay together.
std::vector<Slot> divide(std::span<const std::vector<int>> units, int count) {
  std::vector<Slot> slots;
  const auto total = units.size();
  const auto number = static_cast<std::size_t>(count);
  for (std::size_t index = 0; index < number; ++index) {
    Slot slot;
    slot.index = static_cast<int>(index);
    const std::size_t first = index * total / number;
    const std::size_t end = std::max((index + 1) * total / number, first + 1);
    for (std::size_t unit = first; unit < end; ++unit)
      slot.cpus.insert(slot.cpus.end(), units[unit].begin(), units[unit].end());
    std::sort(slot.cpus.begin(), slot.cpus.end());
    slots.push_back(std::move(slot));
  }
  return slots;
}

}  // namespace

LocalSlots divide_cores(std::span<const std::vector<int>> cores, int count) {
  if (count < 1) throw ConfigError("there must be at least one slot, not " + std::to_string(count));
  std::vector<std::vector<int>> cpus;
  for (const std::vector<int>& core : cores) {
    for (const int cpu : core) cpus.push_back({cpu});
  }
  if (cpus.empty()) throw ConfigError("this process may run on no core");
  const auto number = static_cast<std::size_t>(count);
  LocalSlots result;
  if (number <= cores.size()) {
    result.slots = divide(cores, count);
    return result;
  }
  result.slots = divide(cpus, count);
  result.warning = "oversubscribed: " + std::to_string(count) + " slots on " + count_of(cores.size(), "core") + " (" +
                   std::to_string(cpus.size()) + " logical CPUs): slots share cores and slow each other down";
  return result;
}

std::vector<int> first_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus, int count) {
  std::vector<int> result;
  for (const std::vector<int>& core : cores) {
    std::vector<int> of_core;
    std::copy_if(core.begin(), core.end(), std::back_inserter(of_core),
                 [&](int cpu) { return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end(); });
    if (of_core.empty() || count-- <= 0) continue;
    result.insert(result.end(), of_core.begin(), of_core.end());
  }
  std::sort(result.begin(), result.end());
  return result;
}

int count_cores(std::span<const std::vector<int>> cores, const std::vector<int>& cpus) {
  return static_cast<int>(std::count_if(cores.begin(), cores.end(), [&](const std::vector<int>& core) {
    return std::any_of(core.begin(), core.end(),
                       [&](int cpu) { return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end(); });
  }));
}

LocalSlots local_slots(int count) {
  return divide_cores(host::physical_cores(), count);
}

}  // namespace dtrain::scheduler
