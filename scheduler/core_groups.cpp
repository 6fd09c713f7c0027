#include "dtrain/scheduler/core_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::scheduler {
namespace {

using Units = std::vector<CoreUnit>;
using Region = std::pair<int, int>;  // a socket and a node of it; or a socket, and -1

// Sorts faster kinds first, then by the order in the machine.
void sort_by_region(Units& units) {
  std::sort(units.begin(), units.end(), [](const CoreUnit& a, const CoreUnit& b) {
    return std::tuple(-a.kind, a.package, a.node, a.number) < std::tuple(-b.kind, b.package, b.node, b.number);
  });
}

std::map<int, Units, std::greater<>> by_kind(std::span<const CoreUnit> units) {
  std::map<int, Units, std::greater<>> kinds;
  for (const CoreUnit& unit : units) kinds[unit.kind].push_back(unit);
  return kinds;
}

std::map<Region, Units> by_region(std::span<const CoreUnit> units, bool nodes) {
  std::map<Region, Units> places;
  for (const CoreUnit& unit : units) places[{unit.package, nodes ? unit.node : -1}].push_back(unit);
  return places;
}

// Returns the units of the kind that gives each of `slots` the most; all units if no kind has enough.
Units of_best_kind(std::span<const CoreUnit> units, int slots) {
  const auto kinds = by_kind(units);
  const Units* best = nullptr;
  double most = 0;
  double weight = 1;
  for (const auto& [kind, of_kind] : kinds) {
    const std::size_t of_a_rank = of_kind.size() / static_cast<std::size_t>(slots);
    const double rank = weight * static_cast<double>(of_a_rank);
    if (rank > most) {
      best = &of_kind;
      most = rank;
    }
    weight /= 2;
  }
  return best ? *best : Units(units.begin(), units.end());
}

// Gives group i the units from i*n/count on, at least one.
void divide_in_order(std::span<const CoreUnit> units, std::size_t count, CoreGroups& groups) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * units.size() / count;
    const std::size_t end = std::max((i + 1) * units.size() / count, first + 1);
    std::vector<int> numbers;
    for (std::size_t unit = first; unit < end; ++unit) numbers.push_back(units[unit].number);
    std::sort(numbers.begin(), numbers.end());
    groups.push_back(std::move(numbers));
  }
}

// Returns the number of groups for each place, so that the smallest group is as large as possible. Nothing: that group
// would have less than `enough` and be much smaller than in an even division, or there are more places than groups.
std::optional<std::vector<std::size_t>> groups_of_places(const std::map<Region, Units>& places, std::size_t slots,
                                                         std::size_t units, int enough) {
  if (slots < places.size()) return std::nullopt;
  std::vector<std::size_t> sizes;
  for (const auto& [place, inside] : places) sizes.push_back(inside.size());
  std::vector<std::size_t> counts(sizes.size(), 1);
  for (std::size_t left = slots - counts.size(); left > 0; --left) {
    std::size_t roomiest = 0;  // place where one more group is largest; first of equals
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (sizes[i] * (counts[roomiest] + 1) > sizes[roomiest] * (counts[i] + 1)) roomiest = i;
    }
    ++counts[roomiest];
  }
  std::size_t smallest = units;
  for (std::size_t i = 0; i < sizes.size(); ++i) smallest = std::min(smallest, sizes[i] / counts[i]);
  const std::size_t even = units / slots;
  const bool large = smallest + even / 8 >= even || std::cmp_greater_equal(smallest, enough);
  return large ? std::optional(counts) : std::nullopt;
}

// Returns `each` units from the place with the fewest units that are enough. Nothing: no place has enough.
std::optional<std::vector<int>> take_from_one_place(Units& free, int each, bool nodes) {
  const auto places = by_region(free, nodes);
  const Units* best = nullptr;
  for (const auto& [place, units] : places) {
    if (std::cmp_less(units.size(), each)) continue;
    if (!best || units.size() < best->size()) best = &units;
  }
  if (!best) return std::nullopt;
  std::vector<int> numbers;
  for (int i = 0; i < each; ++i) numbers.push_back((*best)[static_cast<std::size_t>(i)].number);
  return numbers;
}

// Removes `each` units from `free`, which has enough, and returns them, from as few nodes as is easy.
std::vector<int> take_one(Units& free, int each) {
  std::optional<std::vector<int>> numbers = take_from_one_place(free, each, true);
  if (!numbers) {
    const auto sockets = by_region(free, false);
    const auto fits = [&](const auto& socket) { return std::cmp_greater_equal(socket.second.size(), each); };
    const bool in_socket = std::any_of(sockets.begin(), sockets.end(), fits);
    Units from = free;
    if (in_socket) {
      const auto least = std::min_element(sockets.begin(), sockets.end(), [&](const auto& a, const auto& b) {
        return std::tuple(!fits(a), a.second.size()) < std::tuple(!fits(b), b.second.size());
      });
      from = least->second;
    }
    const auto nodes = by_region(from, true);
    std::stable_sort(from.begin(), from.end(), [&](const CoreUnit& a, const CoreUnit& b) {
      const std::size_t of_a = nodes.at({a.package, a.node}).size();
      const std::size_t of_b = nodes.at({b.package, b.node}).size();
      return std::tuple(of_b, a.package, a.node) < std::tuple(of_a, b.package, b.node);
    });
    numbers.emplace();
    for (int i = 0; i < each; ++i) numbers->push_back(from[static_cast<std::size_t>(i)].number);
  }
  std::sort(numbers->begin(), numbers->end());
  std::erase_if(
      free, [&](const CoreUnit& unit) { return std::binary_search(numbers->begin(), numbers->end(), unit.number); });
  return *numbers;
}

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

CoreUnit unit_of(const host::Core& core) {
  return {core.number, core.node, core.package, core.kind};
}

std::vector<std::vector<int>> cpus_of(std::span<const host::Core> cores) {
  std::vector<std::vector<int>> cpus;
  for (const host::Core& core : cores) cpus.push_back(core.cpus);
  return cpus;
}

std::vector<int> cpus_of(std::span<const host::Core> cores, std::span<const int> numbers) {
  std::vector<int> cpus;
  for (const host::Core& core : cores) {
    if (!std::binary_search(numbers.begin(), numbers.end(), core.number)) continue;
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

CoreGroups divide_cores_evenly(std::span<const CoreUnit> all, int slots, int enough) {
  if (slots < 1) throw ConfigError("there must be at least one slot, not " + std::to_string(slots));
  if (all.empty()) throw ConfigError("this process may run on no core");
  const auto count = static_cast<std::size_t>(slots);
  Units units = of_best_kind(all, slots);
  sort_by_region(units);
  CoreGroups groups;
  for (const bool nodes : {true, false}) {
    const auto places = by_region(units, nodes);
    const auto counts = groups_of_places(places, count, units.size(), enough);
    if (!counts || by_kind(units).size() > 1) continue;
    auto of_place = counts->begin();
    for (const auto& [place, inside] : places) divide_in_order(inside, *of_place++, groups);
    return groups;
  }
  divide_in_order(units, count, groups);
  return groups;
}

std::optional<CoreGroups> take_cores(std::span<const CoreUnit> free, int slots, int each) {
  if (slots < 1 || each < 1 || std::cmp_less(free.size() / static_cast<std::size_t>(each), slots)) return std::nullopt;
  Units all(free.begin(), free.end());
  sort_by_region(all);
  auto kinds = by_kind(all);
  CoreGroups groups;
  for (auto& [kind, units] : kinds) {
    if (std::cmp_less(units.size() / static_cast<std::size_t>(each), slots)) continue;
    while (std::cmp_less(groups.size(), slots)) groups.push_back(take_one(units, each));
    return groups;
  }
  while (std::cmp_less(groups.size(), slots)) {
    const auto enough = std::find_if(
        kinds.begin(), kinds.end(), [&](const auto& kind) { return std::cmp_greater_equal(kind.second.size(), each); });
    if (enough == kinds.end()) break;
    groups.push_back(take_one(enough->second, each));
  }
  Units left;
  for (auto& [kind, units] : kinds) left.insert(left.end(), units.begin(), units.end());
  while (std::cmp_less(groups.size(), slots)) groups.push_back(take_one(left, each));
  return groups;
}

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
    return std::ranges::any_of(core, [&](int cpu) { return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end(); });
  }));
}

}  // namespace dtrain::scheduler
