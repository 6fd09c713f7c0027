// The rules of placement on clusters small enough to be looked at.
#include "dtrain/scheduler/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clusters.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Placement, TheVectors) {
  EXPECT_EQ(place(agents_of({8, 7, 7, 4, 4, 4, 4}), slots(16)), (Placement{{"d", 4}, {"e", 4}, {"f", 4}, {"g", 4}}));
  EXPECT_EQ(place(agents_of({8, 8, 3, 3, 3}), slots(12)), std::nullopt);
  EXPECT_EQ(place(agents_of({2, 1, 1}), slots(4)), (Placement{{"a", 2}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(place(agents_of({8, 6, 4}), slots(12)), (Placement{{"a", 8}, {"c", 4}}));
}

TEST(Placement, WithoutHeterogeneousFitsSizesDoNotMix) {
  for (const auto& [sizes, count] :
       std::vector<std::pair<std::vector<int>, int>>{{{2, 1, 1}, 4}, {{8, 6, 4}, 12}, {{8, 8, 3, 3, 3}, 14}}) {
    SlotRequest request = slots(count);
    EXPECT_TRUE(place(agents_of(sizes), request));
    request.allow_heterogeneous_fits = false;
    EXPECT_EQ(place(agents_of(sizes), request), std::nullopt);
  }
}

TEST(Placement, OneAgentIsChosenByWhatItIsLeftWith) {
  std::vector<AgentSlots> agents = agents_of({8, 8, 6, 6});
  agents[1].free = 4;
  SlotRequest request = slots(3);
  EXPECT_EQ(place(agents, request), (Placement{{"b", 3}})) << "left with one";
  request.policy = config::FittingPolicy::kWorst;
  EXPECT_EQ(place(agents, request), (Placement{{"a", 3}})) << "left with five";
  request.slots = 5;
  request.policy = config::FittingPolicy::kBest;
  EXPECT_EQ(place(agents, request), (Placement{{"c", 5}})) << "first of two equals by id";
  std::swap(agents[2], agents[3]);
  EXPECT_EQ(place(agents, request), (Placement{{"c", 5}})) << "in whatever order they are given";
}

TEST(Placement, SeveralAgentsAreUsedWholeAndOnlyWhenFree) {
  std::vector<AgentSlots> agents = agents_of({4, 4, 4, 2, 2});
  EXPECT_EQ(place(agents, slots(8)), (Placement{{"a", 4}, {"b", 4}}));
  agents[0].free = 3;
  EXPECT_EQ(place(agents, slots(8)), (Placement{{"b", 4}, {"c", 4}}));
  agents[1].free = 0;
  EXPECT_EQ(place(agents, slots(8)), (Placement{{"c", 4}, {"d", 2}, {"e", 2}}));
  agents[3].free = 1;
  EXPECT_EQ(place(agents, slots(8)), std::nullopt)
      << "free slots of an agent that is partly taken are not put together";
  EXPECT_EQ(place(agents, slots(6)), (Placement{{"c", 4}, {"e", 2}}));
}

TEST(Placement, AnEqualSizeGoesBeforeFewerAgents) {
  // 8 + 4 would be two agents; three of 4 come first, since sizes only mix where nothing else is left.
  EXPECT_EQ(place(agents_of({8, 4, 4, 4}), slots(12)), (Placement{{"b", 4}, {"c", 4}, {"d", 4}}));
}

TEST(Placement, AmongSetsOfAsFewAgentsTheLargerOnesWin) {
  EXPECT_EQ(place(agents_of({9, 7, 6, 4, 3}), slots(13)), (Placement{{"a", 9}, {"d", 4}})) << "and not 7 + 6";
  EXPECT_EQ(place(agents_of({3, 5, 5, 3, 2}), slots(8)), (Placement{{"b", 5}, {"a", 3}}));
}

TEST(Placement, PoolsAndSlotTypesAreKeptApart) {
  std::vector<AgentSlots> agents = agents_of({4, 4, 4});
  agents[0].resource_pool = "fast";
  agents[2].slot_type = config::AgentSlotType::kCuda;
  SlotRequest request = slots(4);
  EXPECT_EQ(place(agents, request), (Placement{{"b", 4}}));
  request.slots = 8;
  EXPECT_EQ(place(agents, request), (Placement{{"b", 4}, {"c", 4}}));
  request.slot_type = config::AgentSlotType::kCpu;
  EXPECT_EQ(place(agents, request), std::nullopt);
  request.resource_pool = "fast";
  request.slots = 4;
  EXPECT_EQ(place(agents, request), (Placement{{"a", 4}})) << "not declared: may be either";
  request.resource_pool = "none";
  EXPECT_EQ(place(agents, request), std::nullopt);
}

TEST(Placement, ASingleNodeIsOneAgent) {
  SlotRequest request = slots(4);
  request.is_single_node = true;
  EXPECT_EQ(place(agents_of({2, 2, 4}), request), (Placement{{"c", 4}}));
  request.slots = 6;
  EXPECT_EQ(place(agents_of({2, 2, 4}), request), std::nullopt);
}

TEST(Placement, NothingFitsOnNothing) {
  EXPECT_EQ(place({}, slots(1)), std::nullopt);
  EXPECT_EQ(place(agents_of({4}), slots(0)), std::nullopt);
  EXPECT_EQ(place(agents_of({4}), slots(-1)), std::nullopt);
}

TEST(Refusal, SaysWhichRuleFailedOnWhichAgentsAndWhatWouldFit) {
  const auto refusal = never_fits(agents_of({8, 8, 3, 3, 3}), slots(12), 128);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->below, 11);
  EXPECT_EQ(refusal->above, 14);
  EXPECT_EQ(refusal->text(),
            "12 slots never fit on this cluster, even when all of it is free\n"
            "  one agent: none has 12 slots; the largest (a, b) have 8\n"
            "  agents of one size: 2 agents of 8 slots (a, b): 12 is not a multiple of 8\n"
            "  agents of one size: 3 agents of 3 slots (c, d, e): only 9 slots together\n"
            "  agents of different sizes: no set of whole agents has exactly 12 slots together");
  EXPECT_EQ(refusal->remedy,
            "the nearest resources.slots_per_trial that fit: 11 (with a global_batch_size of 121 or 132), "
            "or 14 (with a global_batch_size of 126 or 140)");
}

TEST(Refusal, DependsOnWhatIsAllowed) {
  SlotRequest request = slots(12);
  request.allow_heterogeneous_fits = false;
  auto refusal = never_fits(agents_of({8, 8, 3, 3, 3}), request, 144);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->below, 9);
  EXPECT_EQ(refusal->above, 16);
  EXPECT_THAT(refusal->text(), HasSubstr("different sizes: not allowed (scheduler.allow_heterogeneous_fits: false)"));
  EXPECT_EQ(refusal->remedy, "the nearest resources.slots_per_trial that fit: 9, or 16") << "144 divides by both";

  request.is_single_node = true;
  refusal = never_fits(agents_of({8, 8, 3, 3, 3}), request, 144);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->below, 8);
  EXPECT_EQ(refusal->above, std::nullopt);
  EXPECT_THAT(refusal->text(), HasSubstr("several agents: excluded by resources.is_single_node: true"));
  EXPECT_THAT(refusal->text(), Not(HasSubstr("of one size")));
}

TEST(Refusal, NamesThePoolsAndTypesThatWereLeftOut) {
  std::vector<AgentSlots> agents = agents_of({4, 4, 8});
  agents[2].resource_pool = "big";
  agents[1].slot_type = config::AgentSlotType::kCuda;
  SlotRequest request = slots(8);
  request.slot_type = config::AgentSlotType::kCpu;
  const auto refusal = never_fits(agents, request, 64);
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->text(), HasSubstr("left out: b has GPU slots, but CPU slots are requested"));
  EXPECT_THAT(refusal->text(), HasSubstr("left out: c, not of the resource pool default but of big"));
  request.resource_pool = "none";
  const auto nothing = never_fits(agents, request, 64);
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->below, std::nullopt);
  EXPECT_EQ(nothing->above, std::nullopt);
  EXPECT_THAT(nothing->text(), HasSubstr("not of the resource pool none but of big, default"));
  EXPECT_THAT(nothing->remedy, HasSubstr("dtrain agent list"));
}

TEST(Refusal, OfALargeClusterIsShort) {
  std::vector<int> sizes;
  for (int i = 0; i < 1000; ++i) sizes.push_back(2 + 2 * (i % 20));
  const auto refusal = never_fits(agents_of(sizes), slots(1001), 100);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->below, 1000);
  EXPECT_EQ(refusal->above, 1002);
  EXPECT_THAT(refusal->text(), HasSubstr(" and 46 more)"));
  EXPECT_THAT(refusal->text(), HasSubstr("nor any of 14 smaller sizes"));
  EXPECT_LT(refusal->text().size(), 1500u);
  EXPECT_THAT(refusal->remedy, HasSubstr("1000 (with a global_batch_size of 1000)")) << "100 is too small for any";
}

TEST(Refusal, WhatIsOnlyTakenIsNotRefused) {
  std::vector<AgentSlots> agents = agents_of({4, 4});
  agents[0].free = 0;
  agents[1].free = 1;
  EXPECT_EQ(place(agents, slots(8)), std::nullopt);
  EXPECT_FALSE(never_fits(agents, slots(8), 64));
}

}  // namespace
}  // namespace dtrain::scheduler
