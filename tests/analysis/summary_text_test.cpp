#include "dtrain/analysis/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_folder.h"
#include "summary/summary_words.h"

namespace dtrain::analysis {
namespace {

using testing::HasSubstr;
using testing::Not;

RunSummary two_ranks() {
  RunSummary s;
  s.name = "mnist";
  s.state = "done";
  s.world_size = 2;
  s.loop_s = 10;
  s.in_steps_s = 9;
  s.steps = 1'234;
  s.phases = {{"dataloader_next", 0.5, 0.05, 0.001, 0.002},  {"train_batch", 7, 0.7, 0.01, 0.02},
              {"train_batch.forward", 2, 0.2, 0.003, 0.004}, {"train_batch.backward", 5, 0.5, 0.007, 0.008},
              {"allreduce_wait", 1.5, 0.15, 0.001, 0.002},   {"validation", 0, 0, 0, 0}};
  s.exposed_s = 1.5;
  s.exchange_s = 0.3;
  s.waiting_s = 1.2;
  s.compared_steps = 1'000;
  s.ranks.resize(2);
  s.ranks[1].rank = 1;
  s.ranks[1].waited_for_steps = 900;
  s.ranks[1].waited_for_s = 2.4;
  s.ranks[0].waited_for_steps = 100;
  return s;
}

TEST(SummaryText, DearestFirstWithPartsBelowTheirWhole) {
  const std::string text = render_summary(two_ranks(), {});
  const auto at = [&](const char* name) { return text.find(name); };
  EXPECT_LT(at("  train_batch"), at("    .backward"));
  EXPECT_LT(at("    .backward"), at("    .forward"));
  EXPECT_LT(at("    .forward"), at("  allreduce_wait"));
  EXPECT_LT(at("  allreduce_wait"), at("  between batches"));
  EXPECT_LT(at("  between batches"), at("  dataloader_next"));
  EXPECT_THAT(text, Not(HasSubstr("validation"))) << "nothing was spent there";
  EXPECT_THAT(text, HasSubstr("1,234 batches"));
  EXPECT_THAT(text, HasSubstr("900 of 1,000 exchanges"));
}

TEST(SummaryText, KeepsToItsWidthAndColorsOnlyWhenAsked) {
  RunSummary s = two_ranks();
  for (const int width : {10, 80, 120}) {
    const std::string text = render_summary(s, {width, false});
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    std::size_t start = text.find("Where");
    for (std::size_t end; start < text.find("Ranks") && (end = text.find('\n', start)) != std::string::npos;
         start = end + 1) {
      EXPECT_LE(end - start, static_cast<std::size_t>(std::max(width, 80))) << text.substr(start, end - start);
    }
  }
  EXPECT_THAT(render_summary(s, {100, true}), HasSubstr("\x1b[32mdone"));
  s.state = "failed";
  EXPECT_THAT(render_summary(s, {100, true}), HasSubstr("\x1b[31mfailed"));
}

TEST(SummaryText, AnEmptyRunIsReadable) {
  EXPECT_THAT(render_summary({}, {}), Not(HasSubstr("nan")));
  const RunFolder folder;
  EXPECT_THAT(render_summary(summarize(folder.path()), {}), HasSubstr("no batch was recorded"));
}

AttemptAccount attempt_of(int number, std::int64_t from, std::int64_t to, const std::string& end) {
  return {.attempt = number, .started_s = 0, .ended_s = 1, .from_batch = from, .to_batch = to, .end = end};
}

CheckpointAccount saved(std::int64_t step, int attempt, double copy_s, CheckpointFate fate = CheckpointFate::kKept) {
  CheckpointAccount one;
  one.step = step;
  one.bytes = 2048;
  one.attempt = attempt;
  one.copy_s = copy_s;
  one.fate = fate;
  return one;
}

TEST(SummaryText, OfSeveralAttemptsSaysWhichOneTheTimesAreOf) {
  RunSummary s = two_ranks();
  s.steps = 182;
  s.optimizer_steps = 4'100;  // of all attempts
  EXPECT_THAT(render_summary(s, {}), HasSubstr("182 batches, 4,100 optimizer steps;"));
  s.history.attempts = {attempt_of(1, 0, 3'918, "a\nb\nc"), attempt_of(2, 3'918, 3'918, "failed"),
                        attempt_of(3, 3'918, 4'100, "done")};
  const std::string text = render_summary(s, {});
  EXPECT_THAT(text, HasSubstr("\n  attempt 3 of 3: batches 3,919 to 4,100\n"));
  EXPECT_THAT(text, HasSubstr("182 batches;"));
  EXPECT_THAT(text, Not(HasSubstr("optimizer steps")));
  EXPECT_THAT(text, HasSubstr("Where the time went (of attempt 3, mean of 2 ranks)"));
  EXPECT_THAT(text, HasSubstr("a (and 2 more lines)\n"));
  EXPECT_THAT(text, testing::ContainsRegex("\n +2  none "));
}

TEST(SummaryText, SavingTakesThePhaseAndWithoutAProfileTheCopies) {
  RunSummary s = two_ranks();
  EXPECT_EQ(checkpoints_text(s), "no checkpoint was saved");
  s.history.checkpoints = {saved(10, 1, 0.004, CheckpointFate::kDeleted), saved(25, 2, 0.002)};
  EXPECT_EQ(checkpoints_text(s),
            "2 checkpoints were saved, 1 is kept, the last one of batch 25 and 2.0 KiB; copying held training up for "
            "6.00 ms in all, for 4.00 ms at most");
  s.phases.push_back({"checkpoint", 0.020, 0.002, 0, 0});
  EXPECT_THAT(checkpoints_text(s), HasSubstr("; saving held training up for 20.0 ms in all, 6.00 ms of it copying"));
  s.history.attempts = {attempt_of(1, 0, 12, "failed"), attempt_of(2, 10, 25, "done")};
  EXPECT_THAT(checkpoints_text(s), HasSubstr("; in attempt 2 saving held training up for 20.0 ms in all, 2.00 ms of"));
  s.history.checkpoints.erase(s.history.checkpoints.begin());
  EXPECT_THAT(checkpoints_text(s), HasSubstr("1 checkpoint was saved, of batch 25 and 2.0 KiB; in attempt 2 saving"));
}

TEST(SummaryText, WarningsAreShown) {
  RunSummary s = two_ranks();
  s.warnings = {"the dump of rank 7 is missing"};
  EXPECT_THAT(render_summary(s, {}), HasSubstr("the dump of rank 7 is missing"));
}

TEST(SummaryText, SaysWhatCompressionBroughtWithinItsWidth) {
  RunSummary s = two_ranks();
  s.compression =
      CompressionAccount{"int8",
                         "gradient compression (int8): each rank sent 1.0 MiB instead of 4.0 MiB (4.0x less), "
                         "a step's exchange held up the training for 2 ms instead of 1 ms: LOST 1.23 s in 1234 steps"};
  const std::string text = render_summary(s, {.width = 80});
  EXPECT_THAT(text, HasSubstr("  gradient compression (int8): each rank sent"));
  EXPECT_THAT(text, HasSubstr("LOST"));
  std::istringstream lines(text.substr(text.find("  gradient compression")));
  for (std::string line; std::getline(lines, line) && !line.empty();) EXPECT_LE(line.size(), 80u) << line;
}

TEST(SummaryText, SaysHowParametersAreUpdated) {
  RunSummary s = two_ranks();
  EXPECT_THAT(render_summary(s, {}), testing::Not(HasSubstr("updates:")));
  s.strategy = StrategyAccount{"sharded", "sharded updates: 5.1 MiB a host instead of 10.1 MiB", 5.1e6, 1e7, {}, {}};
  EXPECT_THAT(render_summary(s, {}), HasSubstr("  sharded updates: 5.1 MiB a host instead of 10.1 MiB"));
}

TEST(SummaryText, EndsWithWhatToLookAtFirst) {
  RunSummary s = two_ranks();
  s.look_at = "the loader";
  EXPECT_THAT(render_summary(s, {}), HasSubstr("\nLook at: the loader\n"));
}

}  // namespace
}  // namespace dtrain::analysis
