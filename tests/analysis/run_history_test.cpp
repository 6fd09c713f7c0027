// The attempts at a run and its checkpoints, from events as launchers and ranks write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/analysis/run_history.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

std::vector<Json> events(const std::vector<std::string>& lines) {
  std::vector<Json> result;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string seconds = (i < 10 ? "0" : "") + std::to_string(i);
    result.push_back(Json::parse("{\"time\":\"2026-03-01T12:00:" + seconds + ".000000Z\"," + lines[i] + "}"));
  }
  return result;
}

TEST(RunHistory, HasEachAttemptWithItsBatchesAndWhyItEnded) {
  const RunHistory history = history_of(events({
      R"("event":"submitted")",
      R"("event":"attempt_started","attempt":1)",
      R"("event":"checkpoint_saved","step":10,"epoch":0,"bytes":2048,"reason":"period","copy_s":0.004,"wait_s":0.1,"write_s":0.2)",
      R"("event":"rank_stopped","step":12)",
      R"("event":"attempt_failed","attempt":1,"cause":"rank 1 was killed")",
      R"("event":"attempt_started","attempt":2,"resume_from":"/r/checkpoints/step-10","step":10)",
      R"("event":"checkpoint_delayed","step":20,"cause":"the disk is slow")",
      R"("event":"checkpoint_failed","step":20,"cause":"no space","retried":true)",
      R"("event":"checkpoint_saved","step":25,"epoch":2,"bytes":2048,"reason":"stop","copy_s":0.002)",
      R"("event":"attempt_stopped","attempt":2,"reason":"preempted by task 3")",
      R"("event":"attempt_started","attempt":3,"step":25)",
      R"("event":"interrupted","signal":"SIGTERM")",
      R"("event":"rank_finished","rank":0,"step":30)",
      R"("event":"run_ended","state":"interrupted","exit_code":75)",
      R"("event":"attempt_started","attempt":4,"step":30)",
      R"("event":"attempt_started","attempt":5,"step":30)",
  }));
  ASSERT_EQ(history.attempts.size(), 5u);
  const auto text = [&](std::size_t i) { return batches_text(history.attempts[i]) + ": " + history.attempts[i].end; };
  EXPECT_EQ(text(0), "1 to 12: rank 1 was killed");
  EXPECT_EQ(text(1), "11 to 25: preempted by task 3");
  EXPECT_EQ(text(2), "26 to 30: interrupted by SIGTERM");
  EXPECT_EQ(text(3), "from 31: it ended without a report");
  EXPECT_EQ(text(4), "from 31: ");
  EXPECT_EQ(*history.attempts[0].ended_s - history.attempts[0].started_s, 3);
  EXPECT_FALSE(history.attempts[3].ended_s);
  ASSERT_EQ(history.checkpoints.size(), 2u);
  EXPECT_EQ(history.checkpoints[1].reason, "stop");
  EXPECT_EQ(history.checkpoints[0].attempt, 1);
  EXPECT_EQ(history.checkpoints[1].attempt, 2);
  EXPECT_DOUBLE_EQ(history.copy_s(), 0.006);
  EXPECT_DOUBLE_EQ(history.longest_copy_s(), 0.004);
  ASSERT_EQ(history.troubles.size(), 2u);
  EXPECT_EQ(text_of(history.troubles[0]), "a checkpoint of batch 20 was delayed: the disk is slow");
  EXPECT_EQ(text_of(history.troubles[1]), "a checkpoint of batch 20 failed and was tried again: no space");
}

// Events a second apart: 30 s of wall time.
std::vector<Json> with_a_failure(const std::string& failed, const std::string& recovered) {
  std::vector<std::string> lines(30, R"("event":"checkpoint_delayed","step":1)");
  lines[0] = R"("event":"attempt_started","attempt":1)";
  lines[2] = R"("event":"rank_running","rank":0)";
  lines[12] = R"("event":"attempt_failed","attempt":1,"cause":"rank 1 was killed")" + failed;
  lines[13] = R"("event":"attempt_started","attempt":2,"step":40)";
  lines[15] = R"("event":"rank_running","rank":0)";
  lines[18] = recovered;
  lines[29] = R"("event":"run_ended","state":"done","exit_code":0)";
  return events(lines);
}

TEST(RunHistory, CountsTheTimeThatWentIntoBatchesThatCount) {
  const RunHistory history = history_of(with_a_failure(
      R"(,"step":47)", R"("event":"recovered","attempt":2,"batches_again":7,"seconds":5.5,"lost_s":7.0)"));
  ASSERT_EQ(history.attempts.size(), 2u);
  EXPECT_EQ(history.attempts[0].to_batch, 47);
  EXPECT_FALSE(history.attempts[0].recovery);
  ASSERT_TRUE(history.attempts[1].recovery);
  EXPECT_EQ(recovery_text(history.attempts[1]), "7 batches again, 5.50 s");
  EXPECT_EQ(recovery_text(history.attempts[0]), "-");
  const auto time = history.useful_time();
  ASSERT_TRUE(time);
  EXPECT_DOUBLE_EQ(time->wall_s, 29);
  EXPECT_DOUBLE_EQ(time->useful_s, 29 - 2 - 7) << "without the start and without what the failure has cost";
  EXPECT_EQ(to_json(history.attempts[1]).at("batches_again"), 7);
  EXPECT_EQ(to_json(history.attempts[0]).at("recovery_s"), nullptr);
}

TEST(RunHistory, TimeAfterAFailureWithoutANewBatchIsLost) {
  const std::string nothing = R"("event":"checkpoint_delayed","step":1)";
  const auto time = history_of(with_a_failure(R"(,"step":47)", nothing)).useful_time();
  ASSERT_TRUE(time);
  EXPECT_DOUBLE_EQ(time->useful_s, 12 - 2);
  EXPECT_FALSE(history_of(with_a_failure("", nothing)).useful_time()) << "an earlier version has not recorded it";
  EXPECT_FALSE(history_of({}).useful_time());
}

TEST(RunHistory, TheTimeWhileARunHadEndedIsNobodys) {
  const RunHistory history = history_of(events({
      R"("event":"attempt_started","attempt":1)",
      R"("event":"rank_running","rank":0)",
      R"("event":"run_ended","state":"interrupted","exit_code":75)",
      R"("event":"continued")",
      R"("event":"continued")",
      R"("event":"attempt_started","attempt":2,"step":40)",
      R"("event":"rank_running","rank":0)",
  }));
  const auto time = history.useful_time(history.attempts.back().started_s + 5);
  ASSERT_TRUE(time);
  EXPECT_DOUBLE_EQ(time->wall_s, 2 + 5);
  EXPECT_DOUBLE_EQ(time->useful_s, 1 + 4);
}

TEST(RunHistory, OfWhatIsNoRunIsEmpty) {
  EXPECT_TRUE(read_history("/nowhere").attempts.empty());
  const RunHistory history =
      history_of(events({R"("event":7)", R"("event":"checkpoint_saved","step":"x","bytes":null,"copy_s":[])"}));
  EXPECT_TRUE(history.attempts.empty());
  ASSERT_EQ(history.checkpoints.size(), 1u);
  EXPECT_EQ(history.checkpoints[0].step, 0);
  EXPECT_FALSE(history.latest()->metric_value);
  EXPECT_EQ(history.best(true), nullptr);
  EXPECT_EQ(RunHistory().latest(), nullptr);
}

TEST(RunHistory, AnAttemptThatFailsBeforeABatchHasNone) {
  const RunHistory history = history_of(events({
      R"("event":"attempt_started","attempt":1)",
      R"("event":"rank_failed","rank":0,"step":-1,"cause":"no GPU")",
      R"("event":"rank_stopped","rank":1,"step":-1)",
      R"("event":"run_ended","state":"failed","cause":"rank 0 could not start: it does not fit:\n  a\n  b")",
      R"("event":"attempt_started","attempt":2,"step":4204)",
      R"("event":"rank_failed","rank":0,"step":-1)",
      R"("event":"run_ended","state":"failed","cause":"it does not fit:\n  a")",
      R"("event":"attempt_started","attempt":3,"step":4204)",
      R"("event":"rank_stopped","rank":1,"step":-1)",
      R"("event":"rank_failed","rank":0,"step":4205,"cause":"nan")",
  }));
  ASSERT_EQ(history.attempts.size(), 3u);
  EXPECT_EQ(batches_text(history.attempts[0]), "none");
  EXPECT_EQ(end_text(history.attempts[0]), "rank 0 could not start: it does not fit: (and 2 more lines)");
  EXPECT_EQ(batches_text(history.attempts[1]), "none");
  EXPECT_EQ(end_text(history.attempts[1]), "it does not fit: (and 1 more line)");
  EXPECT_EQ(batches_text(history.attempts[2]), "4,205 to 4,205");
  EXPECT_EQ(end_text(history.attempts[2]), "it has not ended");
}

TEST(RunHistory, KnowsWhichCheckpointsAreKept) {
  const RunHistory history = history_of(events({
      R"("event":"attempt_started","attempt":1)",
      R"("event":"checkpoint_saved","step":10,"path":"/c/step-10","deleted":[],"metric":"loss","metric_value":0.5)",
      R"("event":"checkpoint_saved","step":20,"path":"/c/step-20","deleted":[],"metric":"loss","metric_value":0.25)",
      R"("event":"checkpoint_saved","step":30,"path":"/c/step-30","deleted":["step-10"],"metric":"","metric_value":null)",
      R"("event":"attempt_started","attempt":2,"step":30)",
      R"("event":"checkpoint_saved","step":30,"path":"/c/step-30","deleted":[7],"metric":"loss","metric_value":0.25)",
      R"("event":"checkpoint_saved","step":40,"path":"/c/step-40","deleted":["step-30"],"metric":"loss","metric_value":0.75)",
  }));
  std::string fates;
  for (const CheckpointAccount& one : history.checkpoints) fates += word_of(one.fate) + " ";
  EXPECT_EQ(fates, "deleted kept replaced deleted kept ");
  EXPECT_EQ(history.latest()->step, 40);
  EXPECT_EQ(history.best(true)->step, 20);
  EXPECT_EQ(history.best(false)->step, 40);
  EXPECT_EQ(to_json(history.checkpoints[0]).at("fate"), "deleted");
  EXPECT_EQ(to_json(history.checkpoints[2]).at("metric_value"), nullptr);
  EXPECT_EQ(to_json(history.checkpoints[4]).at("attempt"), 2);
}

TEST(RunHistory, SeesWhatSomebodyHasDeleted) {
  const RunFolder folder;
  fs::create_directories(folder.path() / "checkpoints" / "step-20");
  const auto saved = [](int step, const std::string& path) {
    return fmt::format(R"("event":"checkpoint_saved","step":{},"path":"{}")", step, path);
  };
  RunHistory history = history_of(
      events({saved(10, folder.path() / "checkpoints" / "step-10"),
              saved(20, folder.path() / "checkpoints" / "step-20"), saved(30, "/nowhere/checkpoints/step-30")}));
  history.look_into_storage();
  EXPECT_EQ(history.checkpoints[0].fate, CheckpointFate::kDeleted);
  EXPECT_EQ(history.checkpoints[1].fate, CheckpointFate::kKept);
  EXPECT_EQ(history.checkpoints[2].fate, CheckpointFate::kKept);
}

}  // namespace
}  // namespace dtrain::analysis
