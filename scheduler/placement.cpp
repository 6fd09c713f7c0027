#include "dtrain/scheduler/placement.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "dtrain/base/text.h"
#include "eligible.h"

namespace dtrain::scheduler {
namespace {

struct SizeGroup {
  int size = 0;   // at least 1
  int count = 0;  // at least 1
};

// --- Tests whether there is any set, with a bit for each sum. ---

using Sums = std::bitset<kMostSlots + 1>;

bool is_sum(std::span<const SizeGroup> groups, int target) {
  Sums sums;
  sums.set(0);
  for (const SizeGroup& group : groups) {
    int left = std::min(group.count, target / group.size);
    for (int part = 1; left > 0; part *= 2) {  // any number is a sum of 1, 2, 4, … and a rest
      const int taken = std::min(part, left);
      left -= taken;
      sums |= sums << static_cast<std::size_t>(taken) * static_cast<std::size_t>(group.size);
    }
  }
  return sums[static_cast<std::size_t>(target)];
}

// --- Searches depth first, larger sizes first, for a given number of agents; nearly always ends at once. ---

class Search {
 public:
  explicit Search(std::span<const SizeGroup> groups) : groups_(groups), taken_(groups.size(), 0) {
    prefix_.push_back(0);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      first_.push_back(prefix_.size() - 1);
      place_[groups[i].size] = i;
      for (int n = 0; n < groups[i].count; ++n) prefix_.push_back(prefix_.back() + groups[i].size);
    }
  }

  std::size_t all() const { return prefix_.size() - 1; }
  std::int64_t largest(std::size_t count) const { return prefix_[count]; }
  bool gave_up() const { return left_ == 0; }

  // Returns the first set, in the wanted order, with exactly this many agents and slots. Nothing: none, or it gave up.
  std::optional<std::vector<int>> find(std::size_t count, int target) {
    if (!descend(0, count, target)) return std::nullopt;
    return taken_;
  }

 private:
  // Chooses `count` agents from the groups from `from` on.
  bool descend(std::size_t from, std::size_t count, std::int64_t slots) {
    if (count == 0) return slots == 0;
    if (count == 1) return take_one(from, slots);
    for (std::size_t i = from; i < groups_.size() && left_ > 0; ++i) {
      --left_;
      // Stops if from here on the largest agents have too few slots, as in any later group, or the smallest too many.
      if (first_[i] + count > all() || prefix_[first_[i] + count] - prefix_[first_[i]] < slots) return false;
      if (prefix_[all()] - prefix_[all() - count] > slots) return false;
      const SizeGroup& group = groups_[i];
      const auto most = std::min<std::int64_t>({group.count, static_cast<std::int64_t>(count), slots / group.size});
      for (std::int64_t number = most; number > 0 && left_ > 0; --number) {
        --left_;
        taken_[i] = static_cast<int>(number);
        if (descend(i + 1, count - static_cast<std::size_t>(number), slots - number * group.size)) return true;
      }
      taken_[i] = 0;
    }
    return false;
  }

  bool take_one(std::size_t from, std::int64_t slots) {
    if (slots > std::numeric_limits<int>::max()) return false;
    const auto place = place_.find(static_cast<int>(slots));
    if (place == place_.end() || place->second < from) return false;
    taken_[place->second] = 1;
    return true;
  }

  std::span<const SizeGroup> groups_;
  std::vector<int> taken_;
  std::vector<std::int64_t> prefix_;  // slots of the first n agents, the largest first
  std::vector<std::size_t> first_;    // index of each group's first agent
  std::unordered_map<int, std::size_t> place_;
  int left_ = 200'000;  // steps before it gives up
};

// --- Otherwise computes all sums one after the other: a bounded coin change. ---

constexpr std::size_t kCellsKept = 1 << 24;

// `Number` must hold twice the number of agents.
template <typename Number>
class AllSums {
 public:
  AllSums(std::span<const SizeGroup> groups, int target) : groups_(groups), target_(target) {}

  // Rows are made from the smallest size up, so the way back decides the largest size first. If there are too many
  // rows, about the square root of their number are kept; the others are made a second time.
  std::vector<int> find() {
    const std::size_t stages = groups_.size();
    const std::size_t cells = stages * (static_cast<std::size_t>(target_) + 1);
    const auto root = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(stages))));
    const std::size_t stride = cells <= kCellsKept ? 1 : root;
    Row row(static_cast<std::size_t>(target_) + 1, kNever);
    row[0] = 0;
    std::vector<Row> kept;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (stage % stride == 0) kept.push_back(row);
      row = with_group(std::move(row), group_of(stage));
    }

    std::vector<int> taken(stages, 0);
    int best = row.back();
    int sum = target_;
    for (std::size_t block = kept.size(); block-- > 0;) {
      const std::size_t first = block * stride;
      const std::size_t end = std::min(first + stride, stages);
      std::vector<Row> rows{std::move(kept[block])};
      for (std::size_t stage = first; stage + 1 < end; ++stage) {
        rows.push_back(with_group(rows.back(), group_of(stage)));
      }
      for (std::size_t stage = end; stage-- > first && sum > 0;) {
        const int number = most_of(group_of(stage), rows[stage - first], best, sum);
        taken[stages - 1 - stage] = number;
        sum -= number * group_of(stage).size;
        best -= number;
      }
    }
    return taken;
  }

 private:
  using Row = std::vector<Number>;  // row[s]: the fewest agents that have s slots together
  static constexpr Number kNever = std::numeric_limits<Number>::max() / 2;

  const SizeGroup& group_of(std::size_t stage) const { return groups_[groups_.size() - 1 - stage]; }

  // Returns the row after agents of another size are allowed too.
  Row with_group(Row row, const SizeGroup& group) {
    int left = std::min(group.count, target_ / group.size);
    for (int part = 1; left > 0; part *= 2) {
      const int taken = std::min(part, left);
      left -= taken;
      const int shift = taken * group.size;
      const auto agents = static_cast<Number>(taken);
      scratch_.resize(row.size());
      std::copy_n(row.begin(), shift, scratch_.begin());
      put_fewer(row.data() + shift, row.data(), agents, scratch_.data() + shift, target_ + 1 - shift);
      row.swap(scratch_);
    }
    return row;
  }

  // to[s] = the fewer of without[s] and with[s] + agents. If the length of a loop is known, GCC vectorises it at -O2
  // too, which is four times as fast.
  static void put_fewer(const Number* without, const Number* with, Number agents, Number* __restrict to, int count) {
    constexpr int kBlock = 64;
    int s = 0;
    for (; s + kBlock <= count; s += kBlock, without += kBlock, with += kBlock, to += kBlock) {
      for (int k = 0; k < kBlock; ++k) to[k] = std::min(without[k], static_cast<Number>(with[k] + agents));
    }
    for (; s < count; ++s) *to++ = std::min(*without++, static_cast<Number>(*with++ + agents));
  }

  // Returns the group's most agents in a best set of `sum` slots. `before`: row without the group; `best`: its agents.
  static int most_of(const SizeGroup& group, const Row& before, int best, int sum) {
    for (int taken = std::min(group.count, sum / group.size); taken > 0; --taken) {
      if (static_cast<int>(before[static_cast<std::size_t>(sum - taken * group.size)]) + taken == best) return taken;
    }
    return 0;
  }

  std::span<const SizeGroup> groups_;
  int target_;
  Row scratch_;
};

// Returns the number of agents of each group, in its order, that have `target` slots together: as few agents as
// possible, then the most of the first group, then of the second, and so on. `groups` is ordered by size, larger first.
// Nothing: no set of them has exactly `target` slots.
std::optional<std::vector<int>> fewest_agents(std::span<const SizeGroup> groups, int target) {
  if (target < 1 || target > kMostSlots || !is_sum(groups, target)) return std::nullopt;
  Search search(groups);
  for (std::size_t count = 1; count <= search.all() && !search.gave_up(); ++count) {
    if (search.largest(count) < target) continue;
    if (auto found = search.find(count, target)) return found;
  }
  if (search.all() < std::numeric_limits<std::int16_t>::max()) return AllSums<std::uint16_t>(groups, target).find();
  return AllSums<std::uint32_t>(groups, target).find();
}

const AgentSlots* one_agent(std::span<const AgentSlots* const> agents, const SlotRequest& request) {
  const AgentSlots* chosen = nullptr;
  for (const AgentSlots* agent : agents) {
    if (agent->free < request.slots) continue;
    const bool fewer_left = chosen && agent->free < chosen->free;
    const bool more_left = chosen && agent->free > chosen->free;
    const bool better = request.policy == config::FittingPolicy::kBest ? fewer_left : more_left;
    if (!chosen || better || (!fewer_left && !more_left && agent->id < chosen->id)) chosen = agent;
  }
  return chosen;
}

// Adds the first `count` agents by id to the placement, as a whole.
void take_whole(std::vector<const AgentSlots*> agents, int count, Placement& placement) {
  const auto end = agents.begin() + count;
  std::partial_sort(agents.begin(), end, agents.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  for (auto agent = agents.begin(); agent != end; ++agent) placement.push_back({(*agent)->id, (*agent)->slots});
}

std::optional<Placement> equal_agents(const SizedAgents& sizes, int slots) {
  for (const auto& [size, agents] : sizes) {
    const int wanted = slots / size;
    if (slots % size != 0 || static_cast<int>(agents.size()) < wanted) continue;
    Placement placement;
    take_whole(agents, wanted, placement);
    return placement;
  }
  return std::nullopt;
}

std::optional<Placement> different_agents(const SizedAgents& sizes, int slots) {
  std::vector<SizeGroup> groups;
  for (const auto& [size, agents] : sizes) groups.push_back({size, static_cast<int>(agents.size())});
  const auto counts = fewest_agents(groups, slots);
  if (!counts) return std::nullopt;
  Placement placement;
  auto count = counts->begin();
  for (const auto& [size, agents] : sizes) take_whole(agents, *count++, placement);
  return placement;
}

// True if one agent of this size and others of `sizes` have exactly `slots` together.
bool adds_up(const SizedAgents& sizes, int size, int slots) {
  if (size == slots) return true;
  std::vector<SizeGroup> others;
  for (const auto& [other, agents] : sizes) {
    const int count = static_cast<int>(agents.size()) - (other == size ? 1 : 0);
    if (count > 0) others.push_back({other, count});
  }
  return fewest_agents(others, slots - size).has_value();
}

}  // namespace

std::optional<Placement> all_agents(std::span<const AgentSlots> all, const SlotRequest& request) {
  std::vector<const AgentSlots*> agents;
  for (const AgentSlots& agent : all) {
    if (is_eligible(agent, request)) agents.push_back(&agent);
  }
  const auto count = static_cast<int>(agents.size());
  if (request.cores_per_slot != 0 || request.is_single_node || count < 2 || request.slots % count != 0) return {};
  Placement placement;
  for (const AgentSlots* agent : agents) {
    const bool alike = !agent->cores.empty() && agent->cores.size() == agents.front()->cores.size();
    if (!alike || room_for(*agent, request, agent->free) < request.slots / count) return std::nullopt;
    placement.push_back({agent->id, request.slots / count});
  }
  std::sort(placement.begin(), placement.end(), [](const auto& a, const auto& b) { return a.agent < b.agent; });
  return placement;
}

bool is_eligible(const AgentSlots& agent, const SlotRequest& request) {
  const auto any = config::AgentSlotType::kAuto;
  return agent.resource_pool == request.resource_pool &&
         (request.slot_type == any || agent.slot_type == any || agent.slot_type == request.slot_type);
}

SizedAgents by_size(std::span<const AgentSlots* const> agents) {
  SizedAgents sizes;
  for (const AgentSlots* agent : agents) sizes[agent->slots].push_back(agent);
  return sizes;
}

int room_for(const AgentSlots& agent, const SlotRequest& request, int free) {
  if (agent.cores.empty()) return free;
  const auto cores = static_cast<int>(agent.cores.size());
  if (request.cores_per_slot > 0) return std::min(free, cores) / request.cores_per_slot;
  return free >= cores ? agent.slots : 0;
}

std::string slots_text(const SlotRequest& request) {
  const bool gpus = request.slot_type == config::AgentSlotType::kCuda;
  const std::string text = count_of(std::max(request.slots, 0), gpus ? "GPU slot" : "slot");
  return request.cores_per_slot > 0 ? text + " x " + count_of(request.cores_per_slot, "core") : text;
}

std::span<const AgentSlots> in_slots(std::span<const AgentSlots> agents, const SlotRequest& request,
                                     std::vector<AgentSlots>& converted) {
  if (std::all_of(agents.begin(), agents.end(), [](const AgentSlots& agent) { return agent.cores.empty(); })) {
    return agents;
  }
  converted.assign(agents.begin(), agents.end());
  for (AgentSlots& agent : converted) {
    if (agent.cores.empty()) continue;
    agent.free = room_for(agent, request, agent.free);
    agent.slots = room_for(agent, request, static_cast<int>(agent.cores.size()));
  }
  return converted;
}

std::optional<Placement> place(std::span<const AgentSlots> all, const SlotRequest& request) {
  if (request.slots < 1) return std::nullopt;
  std::vector<AgentSlots> converted;
  const std::span<const AgentSlots> agents = in_slots(all, request, converted);
  if (!converted.empty()) {
    if (auto placement = all_agents(all, request)) return placement;
  }
  std::vector<const AgentSlots*> eligible;
  std::vector<const AgentSlots*> whole;  // entirely free, and no larger than the request
  for (const AgentSlots& agent : agents) {
    if (!is_eligible(agent, request)) continue;
    eligible.push_back(&agent);
    if (agent.slots > 0 && agent.free == agent.slots && agent.slots <= request.slots) whole.push_back(&agent);
  }
  if (const AgentSlots* agent = one_agent(eligible, request)) return Placement{{agent->id, request.slots}};
  if (request.is_single_node) return std::nullopt;
  const SizedAgents sizes = by_size(whole);
  if (auto placement = equal_agents(sizes, request.slots)) return placement;
  if (!request.allow_heterogeneous_fits) return std::nullopt;
  return different_agents(sizes, request.slots);
}

std::set<std::string> usable_agents(std::span<const AgentSlots> all, const SlotRequest& request) {
  std::vector<AgentSlots> converted;
  const std::span<const AgentSlots> agents = in_slots(all, request, converted);
  std::set<std::string> usable;
  std::vector<const AgentSlots*> whole;
  for (const AgentSlots& agent : agents) {
    if (!is_eligible(agent, request)) continue;
    if (agent.slots >= request.slots) {
      usable.insert(agent.id);
    } else if (agent.slots > 0) {
      whole.push_back(&agent);
    }
  }
  if (request.is_single_node) return usable;
  std::vector<AgentSlots> free(all.begin(), all.end());
  for (AgentSlots& agent : free) {
    if (!agent.cores.empty()) agent.free = static_cast<int>(agent.cores.size());
  }
  if (const auto placement = all_agents(free, request)) {
    for (const AgentShare& share : *placement) usable.insert(share.agent);
  }
  const SizedAgents sizes = by_size(whole);
  for (const auto& [size, of_size] : sizes) {
    const bool alike = request.slots % size == 0 && static_cast<int>(of_size.size()) >= request.slots / size;
    if (!alike && !(request.allow_heterogeneous_fits && adds_up(sizes, size, request.slots))) continue;
    for (const AgentSlots* agent : of_size) usable.insert(agent->id);
  }
  return usable;
}

}  // namespace dtrain::scheduler
