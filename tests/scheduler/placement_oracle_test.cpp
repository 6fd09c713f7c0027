// Placement against an oracle that has nothing but the rules: it looks at every set of agents there is.
#include <algorithm>
#include <bit>
#include <optional>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "clusters.h"

namespace dtrain::scheduler {
namespace {

struct Case {
  std::vector<AgentSlots> agents;
  SlotRequest request;

  std::string text() const {
    std::string text = std::to_string(request.slots) + " slots in " + request.resource_pool +
                       (request.is_single_node ? ", single node" : "") +
                       (request.allow_heterogeneous_fits ? "" : ", one size") +
                       (request.policy == config::FittingPolicy::kWorst ? ", worst fit" : "") + "; agents:";
    for (const AgentSlots& agent : agents) {
      text += " " + agent.id + "=" + std::to_string(agent.free) + "/" + std::to_string(agent.slots) + ":" +
              agent.resource_pool + ":" + std::to_string(static_cast<int>(agent.slot_type));
    }
    return text;
  }
};

class Oracle {
 public:
  explicit Oracle(const Case& c) : request_(c.request) {
    for (const AgentSlots& agent : c.agents) {
      const bool type_fits = request_.slot_type == config::AgentSlotType::kAuto ||
                             agent.slot_type == config::AgentSlotType::kAuto || agent.slot_type == request_.slot_type;
      if (agent.resource_pool == request_.resource_pool && type_fits) agents_.push_back(agent);
    }
  }

  std::optional<Placement> place() const {
    if (auto one = on_one()) return one;
    if (request_.is_single_node) return std::nullopt;
    if (auto equal = best_set(true)) return equal;
    return request_.allow_heterogeneous_fits ? best_set(false) : std::nullopt;
  }

 private:
  std::optional<Placement> on_one() const {
    std::vector<std::tuple<int, std::string>> fits;  // what is left (negated for worst fit), id
    for (const AgentSlots& agent : agents_) {
      const int left = agent.free - request_.slots;
      if (left >= 0) fits.emplace_back(request_.policy == config::FittingPolicy::kBest ? left : -left, agent.id);
    }
    if (fits.empty()) return std::nullopt;
    return Placement{{std::get<1>(*std::min_element(fits.begin(), fits.end())), request_.slots}};
  }

  // Of all sets of wholly free agents with exactly the slots: by size of the agents where all must be of one size
  // (larger first), else by their number; then larger agents first, then ids.
  std::optional<Placement> best_set(bool one_size) const {
    using Rank = std::tuple<std::size_t, std::vector<int>, std::vector<std::string>>;
    std::optional<std::pair<Rank, Placement>> best;
    for (unsigned set = 1; set < 1u << agents_.size(); ++set) {
      bool free = true;
      int sum = 0;
      for (unsigned left = set; left != 0; left &= left - 1) {
        const AgentSlots& agent = agents_[static_cast<std::size_t>(std::countr_zero(left))];
        free = free && agent.free == agent.slots;
        sum += agent.slots;
      }
      if (!free || sum != request_.slots) continue;
      Placement placement;
      for (unsigned left = set; left != 0; left &= left - 1) {
        const AgentSlots& agent = agents_[static_cast<std::size_t>(std::countr_zero(left))];
        placement.push_back({agent.id, agent.slots});
      }
      std::sort(placement.begin(), placement.end(), [](const AgentShare& a, const AgentShare& b) {
        return std::tuple(-a.slots, a.agent) < std::tuple(-b.slots, b.agent);
      });
      if (one_size && placement.front().slots != placement.back().slots) continue;
      Rank rank;
      if (!one_size) std::get<0>(rank) = placement.size();
      for (const AgentShare& share : placement) {
        std::get<1>(rank).push_back(-share.slots);
        std::get<2>(rank).push_back(share.agent);
      }
      if (!best || rank < best->first) best = {std::move(rank), std::move(placement)};
    }
    if (!best) return std::nullopt;
    return best->second;
  }

  SlotRequest request_;
  std::vector<AgentSlots> agents_;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  Case next() {
    Case c;
    const int number = between(1, 10);
    const int largest = between(1, chance(50) ? 4 : 12);  // few sizes make groups, many make odd sums
    for (int i = 0; i < number; ++i) {
      AgentSlots agent{.id = "agent-" + std::to_string(between(0, 99)) + static_cast<char>('a' + i)};
      agent.slots = between(1, largest);
      agent.free = chance(75) ? agent.slots : between(0, agent.slots);
      if (chance(10)) agent.resource_pool = "other";
      if (chance(10)) agent.slot_type = chance(50) ? config::AgentSlotType::kCuda : config::AgentSlotType::kCpu;
      c.agents.push_back(agent);
    }
    c.request.slots = between(1, chance(80) ? 3 * largest : 10 * largest);
    c.request.is_single_node = chance(10);
    c.request.allow_heterogeneous_fits = chance(70);
    if (chance(30)) c.request.policy = config::FittingPolicy::kWorst;
    if (chance(5)) c.request.resource_pool = "other";
    if (chance(20)) c.request.slot_type = chance(50) ? config::AgentSlotType::kCuda : config::AgentSlotType::kCpu;
    return c;
  }

 private:
  std::mt19937 engine_;
};

TEST(PlacementOracle, AgreesOn5000RandomClusters) {
  Random random(20260306);
  int on_one = 0;
  int of_one_size = 0;
  int mixed = 0;
  int nowhere = 0;
  for (int round = 0; round < 5000; ++round) {
    const Case c = random.next();
    const auto expected = Oracle(c).place();
    ASSERT_EQ(place(c.agents, c.request), expected) << "round " << round << ": " << c.text();
    if (!expected) {
      ++nowhere;
    } else if (expected->size() == 1) {
      ++on_one;
    } else {
      ++(expected->front().slots == expected->back().slots ? of_one_size : mixed);
    }
  }
  // Each rule was put to the test.
  EXPECT_GT(on_one, 500);
  EXPECT_GT(of_one_size, 200);
  EXPECT_GT(mixed, 200);
  EXPECT_GT(nowhere, 500);
}

TEST(PlacementOracle, RefusesExactlyWhatFitsNowhereAndNamesTheNearestThatDo) {
  Random random(42);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    Case c = random.next();
    const auto refusal = never_fits(c.agents, c.request, 100);
    const int wanted = c.request.slots;
    std::optional<int> below;
    std::optional<int> above;
    bool fits = false;
    int total = 0;
    for (AgentSlots& agent : c.agents) {
      agent.free = agent.slots;
      total += agent.slots;
    }
    for (int count = 1; count <= total; ++count) {
      c.request.slots = count;
      if (!Oracle(c).place()) continue;
      if (count < wanted) below = count;
      if (count == wanted) fits = true;
      if (count > wanted && !above) above = count;
    }
    ASSERT_EQ(refusal.has_value(), !fits) << "round " << round << ": " << wanted << " of " << c.text();
    if (!refusal) continue;
    ++refused;
    EXPECT_EQ(refusal->below, below) << "round " << round << ": " << wanted << " of " << c.text();
    EXPECT_EQ(refusal->above, above) << "round " << round << ": " << wanted << " of " << c.text();
    EXPECT_FALSE(refusal->rules.empty());
  }
  EXPECT_GT(refused, 50);
}

// What the search keeps of its work depends on the number of sizes: more of them than an oracle can take.
TEST(PlacementOracle, ManySizesAreUsedWholeAndSumUp) {
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> sizes;
    for (int i = random.between(30, 120); i > 0; --i) sizes.push_back(random.between(20, 400));
    const auto agents = agents_of(sizes);
    const int wanted = random.between(401, 3000);
    const auto placement = place(agents, slots(wanted));
    ASSERT_EQ(placement.has_value(), !never_fits(agents, slots(wanted), wanted)) << round;
    if (!placement) continue;
    int sum = 0;
    std::vector<std::string> used;
    for (const AgentShare& share : *placement) {
      sum += share.slots;
      used.push_back(share.agent);
      const auto agent =
          std::find_if(agents.begin(), agents.end(), [&](const AgentSlots& one) { return one.id == share.agent; });
      ASSERT_NE(agent, agents.end());
      EXPECT_EQ(share.slots, agent->slots);
    }
    EXPECT_EQ(sum, wanted) << round;
    std::sort(used.begin(), used.end());
    EXPECT_EQ(std::unique(used.begin(), used.end()), used.end()) << round << ": an agent twice";
    EXPECT_GE(static_cast<int>(used.size()) * *std::max_element(sizes.begin(), sizes.end()), wanted);
  }
}

// One agent has an odd size, so every odd sum needs it and the rest is the best of the others. Looking for such a set
// in order of size takes too long: this is where all sums are gone through.
TEST(PlacementOracle, ASetThatNeedsTheSmallestAgent) {
  Random random(11);
  for (int round = 0; round < 5; ++round) {
    std::vector<int> sizes;
    for (int i = 0; i < 600; ++i) sizes.push_back(2 * random.between(1, 200));
    const std::vector<AgentSlots> even = agents_of(sizes);
    std::vector<AgentSlots> all = even;
    all.push_back({.id = "odd", .slots = 1, .free = 1});
    const int wanted = 2 * random.between(2'000, 8'000) + 1;
    auto expected = place(even, slots(wanted - 1));
    ASSERT_TRUE(expected);
    ASSERT_NE(expected->front().slots, expected->back().slots) << "of different sizes";
    expected->push_back({"odd", 1});
    EXPECT_EQ(place(all, slots(wanted)), expected) << round;
  }
}

}  // namespace
}  // namespace dtrain::scheduler
