// When batches of an attempt have ended, from dumps that grow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/batch_times.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

std::string step_record(int batch, int start_ns, int wall_ns) {
  return fmt::format(R"({{"record":"step","batch":{},"epoch":0,"start_ns":{},"wall_ns":{}}})"
                     "\n",
                     batch, start_ns, wall_ns);
}

class BatchTimesTest : public testing::Test {
 protected:
  BatchTimesTest() { fs::create_directories(folder_.path() / "profile"); }
  void write(int rank, const std::string& text) { folder_.append(fmt::format("profile/rank-{:04}.jsonl", rank), text); }

  RunFolder folder_;
  BatchTimes times_{folder_.path() / "profile", 12};
};

TEST_F(BatchTimesTest, AreThoseOfTheFirstAndTheLastRank) {
  times_.poll();
  EXPECT_FALSE(times_.first());
  EXPECT_FALSE(times_.last());
  EXPECT_FALSE(times_.watched()) << "there is no rank";
  EXPECT_FALSE(times_.last_of(0));
  write(0, R"({"record":"header","schema":1,"kind":"rank","rank":0})"
           "\n"
           R"({"record":"part","part":"initialization","start_ns":0,"end_ns":90})"
           "\n");
  times_.poll();
  EXPECT_EQ(times_.last_of(0)->batch, 0) << "it is in its first batch";
  EXPECT_EQ(times_.last_of(0)->end_ns, 90);
  write(0, step_record(11, 100, 50) + step_record(12, 150, 60));
  write(1, step_record(11, 95, 50) + step_record(12, 151, 70).substr(0, 20));
  times_.poll();
  EXPECT_EQ(times_.first()->start_ns, 95);
  EXPECT_EQ(times_.first()->batch, 11);
  EXPECT_EQ(times_.last()->batch, 12) << "the furthest rank";
  EXPECT_EQ(times_.last_of(1)->batch, 11);
  EXPECT_FALSE(times_.watched()) << "rank 1 has not ended it";
  write(1, step_record(12, 151, 70).substr(20) + step_record(13, 230, 10));
  times_.poll();
  ASSERT_TRUE(times_.watched());
  EXPECT_EQ(times_.watched()->start_ns, 150);
  EXPECT_EQ(times_.watched()->end_ns, 221);
  EXPECT_EQ(times_.last()->end_ns, 240);
}

TEST_F(BatchTimesTest, OfAWindowAreEquallyLong) {
  write(0, R"({"record":"window","first_batch":10,"last_batch":13,"epoch":0,"start_ns":1000,"end_ns":1400,"steps":4})"
           "\n");
  times_.poll();
  EXPECT_EQ(times_.first()->batch, 10);
  EXPECT_EQ(times_.first()->start_ns, 1000);
  ASSERT_TRUE(times_.watched());
  EXPECT_EQ(times_.watched()->start_ns, 1200);
  EXPECT_EQ(times_.watched()->end_ns, 1300);
  EXPECT_EQ(times_.last()->batch, 13);
  EXPECT_EQ(times_.last()->end_ns, 1400);
}

}  // namespace
}  // namespace dtrain::analysis
