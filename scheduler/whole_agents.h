// The exact search among whole agents of different sizes: a bounded coin change. Pure, any thread. Private to
// scheduler.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace dtrain::scheduler {

// A group of `count` agents with `size` slots each.
struct SizeGroup {
  int size = 0;   // at least 1
  int count = 0;  // at least 1
};

// Returns the number of agents of each group, in its order, that have `target` slots together: as few agents as
// possible, then the most of the first group, then of the second, and so on. `groups` is ordered by size, larger first.
// Nothing: no set of them has exactly `target` slots.
std::optional<std::vector<int>> fewest_agents(std::span<const SizeGroup> groups, int target);

}  // namespace dtrain::scheduler
