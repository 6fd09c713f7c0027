// Clusters and requests in a word.
#pragma once

#include <string>
#include <vector>

#include "dtrain/scheduler/placement.h"

namespace dtrain::scheduler {

// Agents of these sizes, wholly free: "a", "b", …, and "0027" and so on where there are more than letters.
inline std::vector<AgentSlots> agents_of(const std::vector<int>& sizes) {
  std::vector<AgentSlots> agents;
  for (const int size : sizes) {
    const std::size_t index = agents.size();
    std::string id = std::to_string(index);
    id = sizes.size() <= 26 ? std::string(1, static_cast<char>('a' + index)) : std::string(4 - id.size(), '0') + id;
    agents.push_back({.id = id, .slots = size, .free = size});
  }
  return agents;
}

inline SlotRequest slots(int count) {
  return {.slots = count};
}

}  // namespace dtrain::scheduler
