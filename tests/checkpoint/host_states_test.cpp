// From which state several hosts go on together, and what stays in the memory of each.
#include <cstring>

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
  EXPECT_FALSE(chosen->whole);
  EXPECT_EQ(chosen_step(all({{61, 2, 4, {}}}, own_b), kLast), 50) << "ranks 2 and 3 have not done batch 61";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, {{60, 2, 4, {3}}}), kLast), 50) << "rank 2's is missing";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, {{60, 2, 8, {2, 3}}}), kLast), 50) << "of another number of ranks";
  EXPECT_EQ(chosen_step(all({{60, 2, 4, {}}}, own_b), kLast, 2), 50) << "there are fewer ranks now";
  EXPECT_EQ(chosen_step(all({}, own_b), kLast), 50) << "no survivor has saved batch 60";
  auto away = all({{60, 2, 4, {}}}, own_b);
  away[1].lineage = "old";
  EXPECT_EQ(chosen_step(away, kLast), 50);
}

TEST(HostStates, AreTheSameAfterAMessage) {
  const HostStates there = host_states_of(to_json(host("now", {{1, 0, 2, {}}}, {{2, 0, 2, {}}}, {{2, 1, 2, {0, 1}}})));
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
