// The exact search among whole agents of different sizes: a bounded coin change. Pure, any thread. Private to
// scheduler.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace dtrain::scheduler {

// So many agents of so many slots each.
struct SizeGroup {
  int size = 0;   // at least 1
  int count = 0;  // at least 1
};

// How many agents of each group, in its order, have `target` slots together: as few as possible, and among these the
// most of the first group, then of the second, and so on. `groups` is ordered by size, larger first. Nothing: no set of
// them has exactly that many.
std::optional<std::vector<int>> fewest_agents(std::span<const SizeGroup> groups, int target);

}  // namespace dtrain::scheduler
