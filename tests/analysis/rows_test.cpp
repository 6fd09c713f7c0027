#include "measure/rows.h"

#include <gtest/gtest.h>

namespace dtrain::analysis {
namespace {

StepLine step(std::int64_t batch, std::int64_t wall_ns, bool exchanged = true) {
  StepLine line;
  line.batch = batch;
  line.wall_ns = wall_ns;
  line.exchanged = exchanged;
  line.samples = 1;
  return line;
}

WindowLine window(std::int64_t first, std::int64_t last, std::int64_t steps, std::int64_t wall_ns) {
  WindowLine line;
  line.first_batch = first;
  line.last_batch = last;
  line.steps = line.exchanged = line.samples = steps;
  line.wall_ns = wall_ns;
  return line;
}

TEST(Rows, AreTheStepsThatAllRanksHave) {
  RunProfile run;
  run.ranks.resize(2);
  run.ranks[0].steps = {step(1, 10), step(2, 20), step(3, 30), step(3, 99)};
  run.ranks[1].steps = {step(1, 11), step(3, 33)};
  const Rows rows(run);
  ASSERT_EQ(rows.rows().size(), 2u);
  EXPECT_EQ(rows.at(0, 1).wall_ns, 11);
  EXPECT_EQ(rows.rows()[1].first_batch, 3);
  EXPECT_EQ(rows.at(1, 0).wall_ns, 30) << "a batch done twice counts once";
  EXPECT_EQ(rows.steps(), 2);
}

TEST(Rows, BatchesWithoutAnExchangeBelongToTheNextThatHasOne) {
  RunProfile run;
  run.ranks.resize(1);
  run.ranks[0].steps = {step(1, 1, false), step(2, 2, false), step(3, 4, true), step(4, 8, true), step(5, 16, false)};
  const Rows rows(run);
  ASSERT_EQ(rows.rows().size(), 3u);
  EXPECT_EQ(rows.at(0, 0).wall_ns, 7);
  EXPECT_EQ(rows.rows()[0].steps, 3);
  EXPECT_TRUE(rows.rows()[0].exchanged);
  EXPECT_EQ(rows.at(1, 0).wall_ns, 8);
  EXPECT_FALSE(rows.rows()[2].exchanged) << "left over at the end";
}

TEST(Rows, AnOutlierOfOneRankBelongsToTheOthersWindow) {
  RunProfile run;
  run.ranks.resize(2);
  run.ranks[0].steps = {step(1, 10), step(12, 100), step(15, 70)};
  run.ranks[0].windows = {window(11, 20, 8, 80)};
  run.ranks[1].steps = {step(1, 10), step(15, 60)};
  run.ranks[1].windows = {window(11, 20, 9, 90)};
  const Rows rows(run);
  ASSERT_EQ(rows.rows().size(), 3u);
  EXPECT_TRUE(rows.rows()[1].window);
  EXPECT_EQ(rows.rows()[1].steps, 9);
  EXPECT_EQ(rows.at(1, 0).wall_ns, 180);
  EXPECT_EQ(rows.at(1, 1).wall_ns, 90);
  EXPECT_EQ(rows.at(2, 0).wall_ns, 70) << "a step that both have in full is a row of its own";
  EXPECT_EQ(rows.steps(), 11);
}

TEST(Rows, AWindowThatARankLacksIsLeftOut) {
  RunProfile run;
  run.ranks.resize(2);
  run.ranks[0].windows = {window(11, 20, 10, 80), window(21, 30, 10, 80)};
  run.ranks[1].windows = {window(21, 30, 10, 90)};
  const Rows rows(run);
  ASSERT_EQ(rows.rows().size(), 1u);
  EXPECT_EQ(rows.rows()[0].first_batch, 21);
}

}  // namespace
}  // namespace dtrain::analysis
