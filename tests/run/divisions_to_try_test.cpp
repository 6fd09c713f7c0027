// Which divisions of cores are tried: pure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/launch_plan.h"

namespace dtrain::launcher {
namespace {

using testing::ElementsAre;

scheduler::ClusterAgent machine(int cores, int nodes) {
  scheduler::ClusterAgent agent;
  for (int core = 0; core < cores; ++core) {
    agent.slots.push_back({.index = core, .cpus = {core}, .node = core * nodes / cores});
  }
  return agent;
}

std::vector<std::string> texts(int cores, int nodes, std::int64_t batch, int most = 0) {
  std::vector<std::string> result;
  for (const DivisionTrial& one : divisions_to_try(machine(cores, nodes), batch, most)) result.push_back(one.text);
  return result;
}

TEST(DivisionsToTry, AreFewAndDivideCoresAndBatch) {
  EXPECT_THAT(texts(1, 1, 64), ElementsAre("1 rank x 1 core"));
  EXPECT_THAT(texts(2, 1, 64), ElementsAre("1 rank x 2 cores", "2 ranks x 1 core"));
  EXPECT_THAT(texts(6, 1, 96), ElementsAre("1 rank x 6 cores", "2 ranks x 3 cores", "6 ranks x 1 core"));
  EXPECT_THAT(texts(6, 3, 96),
              ElementsAre("1 rank x 6 cores", "2 ranks x 3 cores", "3 ranks x 2 cores", "6 ranks x 1 core"));
  EXPECT_THAT(texts(64, 4, 256),
              ElementsAre("1 rank x 64 cores", "2 ranks x 32 cores", "4 ranks x 16 cores", "8 ranks x 8 cores",
                          "16 ranks x 4 cores", "32 ranks x 2 cores", "64 ranks x 1 core"));
  EXPECT_THAT(texts(64, 4, 8),
              ElementsAre("1 rank x 64 cores", "2 ranks x 32 cores", "4 ranks x 16 cores", "8 ranks x 8 cores"));
  EXPECT_THAT(texts(64, 4, 256, 3), ElementsAre("1 rank x 64 cores", "2 ranks x 32 cores"));
  EXPECT_THAT(texts(7, 1, 64), ElementsAre("1 rank x 7 cores")) << "64 records do not divide by 7";
  EXPECT_THAT(texts(4, 1, 1), ElementsAre("1 rank x 4 cores"));
}

TEST(DivisionsToTry, TheFastestThatWasMeasuredIsTaken) {
  std::vector<DivisionTrial> trials{
      {.slots = 1, .step_ms = 5}, {.slots = 2, .step_ms = 5}, {.slots = 4, .failure = "x"}};
  EXPECT_EQ(fastest_of(trials)->slots, 1);
  trials[1].step_ms = 4;
  EXPECT_EQ(fastest_of(trials)->slots, 2);
  EXPECT_EQ(fastest_of({{.slots = 1, .failure = "x"}}), nullptr);
}

TEST(DivisionsToTry, AreKeptInThePlan) {
  const Division division{.slots = 2,
                          .why = "because",
                          .remembered = true,
                          .trials = {{.slots = 1, .text = "one", .failure = "it failed"},
                                     {.slots = 2, .text = "two", .step_ms = 7.5, .steps = 40}}};
  EXPECT_EQ(to_json(division_of(to_json(division))), to_json(division));
  EXPECT_EQ(render_division(division),
            "division    resources.slots_per_trial: auto takes 2, the fastest by the figures of an earlier launch\n"
            "            one: left out, its trial failed: it failed\n"
            "            two: 7.5 ms a batch (median of 40)\n"
            "            resources.slots_per_trial: 2 fixes it (another division gives other bits)\n");
}

}  // namespace
}  // namespace dtrain::launcher
