// From which state several hosts go on together, and what stays in the memory of each.
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/checkpoint/memory_folder.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using State = HostStates::State;

constexpr std::size_t kBytes = 5000;

HostStates host(const std::string& lineage, std::vector<State> whole, std::vector<State> shared = {},
                std::vector<State> own = {}) {
  return {lineage, std::move(whole), std::move(shared), std::move(own)};
}

std::int64_t chosen_step(const std::vector<HostStates>& hosts, const Lineage& last, int world = 4) {
  const auto chosen = choose_state(hosts, last, world);
  return chosen ? chosen->step : -1;
}

const Lineage kLast{.id = "now", .before = {"old"}, .step = 30};

TEST(HostStates, OneHostWithAWholeStateIsEnough) {
  EXPECT_EQ(chosen_step({host("now", {{40, 1, 4, {}}}), host("now", {{50, 1, 4, {}}}), host("", {})}, kLast), 50);
  EXPECT_EQ(chosen_step({host("now", {{40, 1, 2, {}}})}, kLast), 40) << "of another number of ranks";
  EXPECT_EQ(chosen_step({host("now", {}), host("", {})}, kLast), -1);
}

TEST(HostStates, AHostThatWasAwayHasNoVote) {
  EXPECT_EQ(chosen_step({host("now", {{40, 0, 4, {}}}), host("old", {{90, 0, 4, {}}})}, kLast), 40);
  EXPECT_EQ(chosen_step({host("old", {{90, 0, 4, {}}}), host("", {{95, 0, 4, {}}})}, kLast), -1);
  EXPECT_EQ(chosen_step({host("old", {{30, 0, 4, {}}})}, kLast), 30) << "the last attempt has begun with it";
  EXPECT_EQ(chosen_step({host("now", {{40, 0, 4, {}}})}, {}), -1) << "the plan names no attempt";
}

TEST(HostStates, SharedAndOwnStatesAreOneIfNoRankIsMissing) {
  const std::vector<State> own_a{{60, 2, 4, {0, 1}}, {61, 2, 4, {0, 1}}}, own_b{{59, 2, 4, {2, 3}}, {60, 2, 4, {2, 3}}};
  const auto all = [&](std::vector<State> shared, std::vector<State> b) {
    return std::vector{host("now", {{50, 1, 4, {}}}, std::move(shared), own_a),
                       host("now", {{50, 1, 4, {}}}, {}, std::move(b))};
  };
  const auto chosen = choose_state(all({{60, 2, 4, {}}}, own_b), kLast, 4);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->step, 60);
  EXPECT_EQ(chosen->epoch, 2);
  EXPECT_EQ(chosen->kind, StateKind::kShared);
  EXPECT_EQ(chosen_step(all({{61, 2, 4, {}}}, own_b), kLast), 50) << "ranks 2 and 3 have not done batch 61";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, {{60, 2, 4, {3}}}), kLast), 50) << "rank 2's is missing";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, {{60, 2, 8, {2, 3}}}), kLast), 50) << "of another number of ranks";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, own_b), kLast, 2), 50) << "there are fewer ranks now";
  EXPECT_EQ(chosen_step(all({}, own_b), kLast), 50) << "no survivor has saved batch 60";
  auto away = all({{60, 2, 4, {}}}, own_b);
  away[1].lineage = "old";
  EXPECT_EQ(chosen_step(away, kLast), 50);
}

TEST(HostStates, CopiesAreOnTheNextHostsOfTheRing) {
  EXPECT_THAT(hosts_with_copies_of(0, 3, 0), IsEmpty());
  EXPECT_THAT(hosts_with_copies_of(2, 3, 1), ElementsAre(0));
  EXPECT_THAT(hosts_with_copies_of(1, 4, 2), ElementsAre(2, 3));
  EXPECT_THAT(hosts_with_copies_of(1, 2, 5), ElementsAre(0));
  EXPECT_THAT(hosts_with_copies_of(0, 1, 1), IsEmpty());
}

TEST(HostStates, TwoNeighboursThatAreLostTakeTheStateWithThem) {
  // A copy on the next host each. Host 1 has the ranks 2 and 3.
  const auto part = [](std::int64_t step, std::vector<int> ranks) { return State{step, 0, 8, std::move(ranks)}; };
  std::vector<HostStates> hosts(4, host("now", {{40, 0, 8, {}}}));
  hosts[0].parts = {part(50, {0, 1, 6, 7})};
  hosts[1].parts = {part(50, {0, 1, 2, 3})};
  hosts[2].parts = {part(50, {2, 3, 4, 5})};
  hosts[3].parts = {part(50, {4, 5, 6, 7})};
  const auto all = choose_state(hosts, kLast, 8);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->step, 50);
  EXPECT_EQ(all->kind, StateKind::kParts);
  EXPECT_FALSE(lost_state(hosts, kLast, all));
  EXPECT_EQ(chosen_step({hosts[0], hosts[2], hosts[3], host("", {})}, kLast, 6), 50) << "for fewer ranks, too";
  EXPECT_EQ(chosen_step({hosts[1], hosts[3]}, kLast, 8), 50) << "hosts 0 and 2 are no neighbours";
  const std::vector<HostStates> left{hosts[0], hosts[3]};
  const auto chosen = choose_state(left, kLast, 8);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->step, 40);
  const auto lost = lost_state(left, kLast, chosen);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->step, 50);
  EXPECT_THAT(lost->ranks, ElementsAre(2, 3));
}

// A run of a few hosts takes states as Generations does, some hosts are lost at any moment, and another model, which
// knows neither ranks nor files, says which state is the furthest that is whole.
class RingOfHosts {
 public:
  explicit RingOfHosts(std::mt19937_64& chance) : chance_(chance), hosts_(2 + below(4)), copies_(below(4)) {
    for (int host = 0; host < hosts_; ++host) {
      ranks_.emplace_back();
      for (int count = 1 + below(3); count > 0; --count) ranks_.back().push_back(world_++);
    }
    there_.resize(static_cast<std::size_t>(hosts_));
    for (std::int64_t step = 10; step <= 10 * below(4); step += 10) take(step, /*whole=*/true);
    // The last state is complete on some hosts. It is settled only if it is on all.
    take(100, /*whole=*/below(2) == 0);
    for (int host = 0; host < hosts_; ++host) lost_.push_back(below(3) == 0);
  }

  std::vector<HostStates> left() const {
    std::vector<HostStates> states;
    for (int host = 0; host < hosts_; ++host) {
      HostStates here{lost_[static_cast<std::size_t>(host)] ? "" : "now", {}, {}, {}, {}};
      for (const std::int64_t step : there_[static_cast<std::size_t>(host)]) {
        if (!here.lineage.empty()) here.parts.push_back({step, 0, world_, ranks_in_part(host)});
      }
      states.push_back(std::move(here));
    }
    return states;
  }

  std::int64_t expected() const {
    for (const std::int64_t step : {100, 30, 20, 10}) {
      if (hosts_without(step).empty()) return step;
    }
    return -1;
  }
  // The furthest state of which a part is left, and whose ranks are missing in it.
  std::optional<LostState> expected_loss() const {
    for (const std::int64_t step : {100, 30, 20, 10}) {
      const bool is_left = [&] {
        for (int host = 0; host < hosts_; ++host) {
          if (has(host, step)) return true;
        }
        return false;
      }();
      if (!is_left) continue;
      LostState lost{step, {}};
      for (const int host : hosts_without(step)) {
        const auto& ranks = ranks_[static_cast<std::size_t>(host)];
        lost.ranks.insert(lost.ranks.end(), ranks.begin(), ranks.end());
      }
      return lost.ranks.empty() ? std::nullopt : std::optional(lost);
    }
    return std::nullopt;
  }
  // A loss that the copies are for: no host is lost together with all that have copies of it.
  bool is_survivable() const {
    for (int host = 0; host < hosts_; ++host) {
      bool left = false;
      for (int next = 0; next <= std::min(copies_, hosts_ - 1); ++next) {
        left = left || !lost_[static_cast<std::size_t>((host + next) % hosts_)];
      }
      if (!left) return false;
    }
    return true;
  }
  std::int64_t settled() const { return settled_; }
  int world() const { return world_; }

 private:
  int below(int end) { return static_cast<int>(chance_() % static_cast<std::uint64_t>(end)); }
  void take(std::int64_t step, bool whole) {
    for (auto& here : there_) {
      if (whole || below(2) == 0) here.push_back(step);
    }
    if (!whole) return;
    settled_ = step;
    for (auto& here : there_) here.erase(here.begin(), here.end() - 1);  // the state before it is given up
  }
  bool has(int host, std::int64_t step) const {
    const auto& here = there_[static_cast<std::size_t>(host)];
    return !lost_[static_cast<std::size_t>(host)] && std::find(here.begin(), here.end(), step) != here.end();
  }
  // Whose state neither they nor the hosts after them have.
  std::vector<int> hosts_without(std::int64_t step) const {
    std::vector<int> without;
    for (int host = 0; host < hosts_; ++host) {
      bool there = false;
      for (int next = 0; next <= std::min(copies_, hosts_ - 1); ++next)
        there = there || has((host + next) % hosts_, step);
      if (!there) without.push_back(host);
    }
    return without;
  }
  std::vector<int> ranks_in_part(int host) const {
    std::vector<int> ranks = ranks_[static_cast<std::size_t>(host)];
    for (int other = 0; other < hosts_; ++other) {
      const auto to = hosts_with_copies_of(other, hosts_, copies_);
      if (std::find(to.begin(), to.end(), host) == to.end()) continue;
      const auto& theirs = ranks_[static_cast<std::size_t>(other)];
      ranks.insert(ranks.end(), theirs.begin(), theirs.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  std::mt19937_64& chance_;
  const int hosts_, copies_;
  int world_ = 0;
  std::vector<std::vector<int>> ranks_;
  std::vector<std::vector<std::int64_t>> there_;
  std::vector<bool> lost_;
  std::int64_t settled_ = -1;
};

TEST(HostStates, TheFurthestWholeStateIsChosenWhateverIsLost) {
  std::mt19937_64 chance(51);
  int survived = 0, ended = 0;
  for (int number = 0; number < 20'000; ++number) {
    const RingOfHosts ring(chance);
    const std::vector<HostStates> left = ring.left();
    const auto chosen = choose_state(left, kLast, ring.world());
    ASSERT_EQ(chosen ? chosen->step : -1, ring.expected()) << number;
    const auto lost = lost_state(left, kLast, chosen), expected = ring.expected_loss();
    ASSERT_EQ(lost.has_value(), expected.has_value()) << number;
    if (lost) {
      ASSERT_EQ(lost->step, expected->step) << number;
      ASSERT_EQ(lost->ranks, expected->ranks) << number;
    }
    if (ring.is_survivable()) {
      ++survived;
      ASSERT_GE(chosen ? chosen->step : -1, ring.settled()) << number;
    } else {
      ++ended;
    }
  }
  EXPECT_GT(survived, 2000);
  EXPECT_GT(ended, 2000);
}

TEST(HostStates, AreTheSameAfterAMessage) {
  HostStates told = host("now", {{1, 0, 2, {}}}, {{2, 0, 2, {}}}, {{2, 1, 2, {0, 1}}});
  told.parts = {{3, 1, 2, {1}}};
  const HostStates there = host_states_of(to_json(told));
  ASSERT_THAT(there.parts, SizeIs(1));
  EXPECT_EQ(there.parts[0].step, 3);
  EXPECT_THAT(there.parts[0].ranks, ElementsAre(1));
  EXPECT_EQ(there.lineage, "now");
  ASSERT_THAT(there.own, SizeIs(1));
  EXPECT_EQ(there.own[0].epoch, 1);
  EXPECT_THAT(there.own[0].ranks, ElementsAre(0, 1));
  const Lineage lineage = lineage_of(to_json(kLast));
  EXPECT_TRUE(lineage.has("now", 1));
  EXPECT_TRUE(lineage.has("old", 30));
  EXPECT_FALSE(lineage.has("old", 31));
  EXPECT_FALSE(lineage_of(Json()).has("", 30));
}

// A folder as a host has it after ranks 2 and 3 of 4 have trained, and one of them has died.
class HostFolder : public testing::Test {
 protected:
  void SetUp() override {
    fs::permissions(folder_.path(), fs::perms::owner_all);
    begin_lineage(folder_.path(), "now", std::nullopt);
    names_ = reserve_slots(folder_.path(), kBytes, kBytes);
    GenerationBoard::create(folder_.path(), {2, 3}, 4, 100);
  }
  GenerationFiles files(std::int64_t step) const {
    GenerationFiles files;
    files.about.step = step;
    files.about.world_size = 4;
    files.state = "{}";
    files.files = {{kModelFile, kBytes, {}}, {kOptimizerFile, kBytes, {}}};
    return files;
  }
  GenerationSlot slot() const {
    return {folder_.path(), names_.slots[static_cast<std::size_t>(names_.turn)], kBytes, kBytes};
  }
  void publish(int rank, std::int64_t batch) const {
    const GenerationBoard board(folder_.path());
    std::memset(board.begin_publication(rank).data(), 'x', 10);
    board.publish(rank, batch, 0, 10);
  }

  const TemporaryFolder folder_;
  SlotNames names_;
};

TEST_F(HostFolder, HasWholeSharedAndOwnStates) {
  complete_generation(folder_.path(), names_, files(7));
  for (const std::int64_t batch : {8, 9}) publish(0, batch);
  publish(1, 8);
  complete_by_survivor(folder_.path(), slot(), files(8), {});
  const HostStates states = look_at_host(folder_.path());
  EXPECT_EQ(states.lineage, "now");
  ASSERT_THAT(states.whole, SizeIs(1));
  EXPECT_EQ(states.whole[0].step, 7);
  ASSERT_THAT(states.shared, SizeIs(1));
  EXPECT_EQ(states.shared[0].step, 8);
  ASSERT_THAT(states.own, SizeIs(2));
  EXPECT_EQ(states.own[0].step, 8);
  EXPECT_THAT(states.own[0].ranks, ElementsAre(2, 3));
  EXPECT_THAT(states.own[1].ranks, ElementsAre(2));
}

TEST_F(HostFolder, KeepsTheStateThatTheNextAttemptBeginsWith) {
  complete_generation(folder_.path(), names_, files(7));
  complete_by_survivor(folder_.path(), slot(), files(8), {});
  publish(0, 8);
  fs::create_directory(gathered_folder(folder_.path(), 8));
  begin_lineage(folder_.path(), "next", 7);
  HostStates states = look_at_host(folder_.path());
  EXPECT_EQ(states.lineage, "next");
  EXPECT_THAT(states.whole, SizeIs(1));
  EXPECT_THAT(states.shared, IsEmpty());
  EXPECT_THAT(states.own, IsEmpty());
  EXPECT_FALSE(fs::exists(gathered_folder(folder_.path(), 8)));
  begin_lineage(folder_.path(), "third", std::nullopt);
  EXPECT_THAT(look_at_host(folder_.path()).whole, IsEmpty());
}

TEST_F(HostFolder, HasTwoPartsUntilTheNewerOneIsSettled) {
  const auto part = [&](std::int64_t step) {
    GenerationFiles files = this->files(step);
    for (const int rank : {0, 2, 3}) {  // a copy of rank 0, and its own
      files.files.push_back({rank_file(rank), 2, {}});
      slot().write_file(rank_file(rank), "ab");
    }
    return files;
  };
  const auto steps = [&] {
    std::vector<std::int64_t> steps;
    for (const State& state : look_at_host(folder_.path()).parts) steps.push_back(state.step);
    std::sort(steps.begin(), steps.end());
    return steps;
  };
  complete_part(folder_.path(), names_, part(7));
  EXPECT_THAT(look_at_host(folder_.path()).parts[0].ranks, ElementsAre(0, 2, 3));
  EXPECT_THAT(look_at_host(folder_.path()).whole, IsEmpty());
  settle_part(folder_.path(), names_, 7);
  complete_part(folder_.path(), names_, part(9));
  EXPECT_THAT(steps(), ElementsAre(7, 9));
  drop_part(folder_.path(), names_);  // another host has not completed its part
  EXPECT_THAT(steps(), ElementsAre(7));
  complete_part(folder_.path(), names_, part(12));
  settle_part(folder_.path(), names_, 12);
  EXPECT_THAT(steps(), ElementsAre(12));
  drop_part(folder_.path(), names_);  // the next one was never complete here
  EXPECT_THAT(steps(), ElementsAre(12));
  begin_lineage(folder_.path(), "next", std::nullopt);
  EXPECT_THAT(steps(), IsEmpty());
}

TEST_F(HostFolder, OfAnotherVersionOrOpenToOthersHasNothing) {
  complete_generation(folder_.path(), names_, files(7));
  publish(0, 7);
  fs::resize_file(folder_.path() / ".board", 4096);
  EXPECT_THAT(look_at_host(folder_.path()).own, IsEmpty());
  fs::permissions(folder_.path(), fs::perms::all);
  EXPECT_THAT(look_at_host(folder_.path()).whole, IsEmpty());
}

}  // namespace
}  // namespace dtrain::checkpoints
