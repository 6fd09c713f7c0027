// What a launch tells of its recoveries, and when a fault that comes back ends the run.
#include <gmock/gmock.h>

#include <numeric>

#include "run_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

Settings saving(const std::string& trouble, const std::string& more) {
  return {.slots = 2,
          .batches = 30,
          .hyperparameters = "checkpoint_every: 5, step_ms: 10, trouble: {" + trouble + "}",
          .more = more};
}

std::vector<Json> events_of(const TestRun& run, const std::string& name) {
  std::vector<Json> result;
  for (const Json& event : run.events()) {
    if (event.value("event", "") == name) result.push_back(event);
  }
  return result;
}

Json summary_of(const TestRun& run) {
  Command summary(run.folder(), {bin("dtrain"), "summary", "--json", run.run_dir().string()});
  EXPECT_TRUE(summary.wait().success()) << summary.err();
  return Json::parse(summary.out());
}

TEST(Recoveries, AreToldOnceAFirstNewBatchHasEnded) {
  TestRun run(saving("rank: 1, batch: 13, kind: SIGKILL, once: true", "max_restarts: 1\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  const auto failed = events_of(run, "attempt_failed");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].at("rank"), 1);
  EXPECT_EQ(failed[0].at("step"), 12);
  const auto recovered = events_of(run, "recovered");
  ASSERT_EQ(recovered.size(), 1u);
  const Json& event = recovered[0];
  EXPECT_EQ(event.at("attempt"), 2);
  EXPECT_EQ(event.at("rank"), 1);
  EXPECT_EQ(event.at("cause"), "rank 1 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(event.at("step"), 10);
  EXPECT_EQ(event.at("batches_again"), 2);
  double sum = 0;
  for (const char* part : {"ended_s", "started_s", "joined_s", "resumed_s", "new_batch_s"}) {
    ASSERT_TRUE(event.at(part).is_number()) << part << " of " << event;
    EXPECT_GE(event.at(part).get<double>(), 0) << part;
    sum += event.at(part).get<double>();
  }
  EXPECT_NEAR(sum, event.at("seconds").get<double>(), 1e-9);
  EXPECT_GE(event.at("new_batch_s").get<double>(), 0.030) << "batches 11 and 12 again, and batch 13, of 10 ms each";
  EXPECT_GT(event.at("noticed_s").get<double>(), 0);
  EXPECT_GT(event.at("lost_s").get<double>(), event.at("ended_s").get<double>());
  EXPECT_THAT(launch.out(), HasSubstr("dtrain: recovered: rank 1 was killed by signal 9 (SIGKILL) (host "));
  EXPECT_THAT(
      launch.out(),
      HasSubstr("); attempt 2 went on from batch 10 and did 2 batches again; batch 13, the first new one, ended "));
  EXPECT_THAT(launch.out(), HasSubstr("useful time: "));
  const Json summary = summary_of(run);
  EXPECT_EQ(summary.at("attempts")[1].at("batches_again"), 2);
  EXPECT_EQ(summary.at("attempts")[1].at("recovery_s"), event.at("seconds"));
  EXPECT_GT(summary.at("useful_share").get<double>(), 0);
  EXPECT_LT(summary.at("useful_share").get<double>(), 1);
}

TEST(Recoveries, OfARunThatBeginsAnewRepeatAllBatches) {
  TestRun run(saving("rank: 0, batch: 4, kind: SIGKILL, times: 1", "max_restarts: 1\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  const auto recovered = events_of(run, "recovered");
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].at("step"), 0);
  EXPECT_EQ(recovered[0].at("batches_again"), 3);
}

TEST(FaultsByPlace, TheSameThreeTimesEndTheRunWithTheirCause) {
  TestRun run(saving("rank: 1, batch: 12, kind: SIGSEGV", "max_restarts: 100\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1") << launch.out();
  EXPECT_EQ(events_of(run, "attempt_started").size(), 3u);
  EXPECT_EQ(events_of(run, "recovered").size(), 0u) << "no new batch has ended";
  EXPECT_THAT(launch.err(), HasSubstr("the run failed: rank 1 has failed three times at batch 12: rank 1 was killed by "
                                      "signal 11 (SIGSEGV)"));
  EXPECT_THAT(launch.err(), HasSubstr("the same fault at the same batch does not pass by itself"));
}

// Which of them is noticed first differs from attempt to attempt.
TEST(FaultsByPlace, OfAllRanksAtOnceAreOne) {
  TestRun run(saving("batch: 12, kind: SIGSEGV", "max_restarts: 100\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 1") << launch.out();
  const auto attempts = events_of(run, "attempt_started").size();
  EXPECT_GE(attempts, 3u);
  EXPECT_LE(attempts, 5u) << "each of two ranks was alone twice";
  EXPECT_THAT(launch.err(), HasSubstr(" has failed three times at batch 12: rank "));
}

TEST(FaultsByPlace, AtOtherBatchesHaveNoLimitButRestartsWithoutProgress) {
  TestRun run(saving("chance: 0.06, kind: SIGSEGV, seed: 7", "max_restarts: 20\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  EXPECT_THAT(launch.err(), Not(HasSubstr("three times")));
  std::vector<int> batches;
  for (const Json& line : read_lines(run.run_dir() / "metrics.jsonl")) batches.push_back(line.at("batch"));
  std::vector<int> all(30);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(batches, all);
  EXPECT_GE(events_of(run, "recovered").size(), 2u) << "the seed has faults";
}

// The fault passes once; when it comes back at that batch, it is counted anew.
TEST(FaultsByPlace, ThatTheRunHasGotPastAreForgotten) {
  TestRun run(saving("rank: 1, batch: 12, kind: SIGKILL, times: 2", "max_restarts: 100\n"));
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.out() << launch.err();
  const auto recovered = events_of(run, "recovered");
  ASSERT_EQ(recovered.size(), 1u) << "one recovery, of two attempts";
  EXPECT_EQ(recovered[0].at("attempt"), 3);
  EXPECT_EQ(recovered[0].at("batches_again"), 1);
}

}  // namespace
}  // namespace dtrain
