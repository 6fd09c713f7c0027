// Whole runs compared: what is judged, printed and written.
#include "dtrain/analysis/diff.h"

#include <gmock/gmock.h>

#include "../synthetic.h"
#include "dtrain/base/error.h"
#include "made_runs.h"

namespace dtrain::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

test::SyntheticRun slower_by(double share, std::uint64_t seed) {
  test::SyntheticRun run;
  run.seed = seed;
  run.steps = 400;
  run.change = [share](int, std::int64_t, test::SyntheticStep& step) {
    phase(step, profile::Phase::kForward) += std::llround(share * 10.8 * kMs);
  };
  return run;
}

const DiffQuantity& phase_of(const RunDiff& diff, const std::string& name) {
  return *std::find_if(diff.phases.begin(), diff.phases.end(), [&](const auto& one) { return one.name == name; });
}

TEST(Diff, SaysWhatGotSlowerAndWhichPhase) {
  const Synthetic a(slower_by(0, 1)), b(slower_by(0.06, 2));
  const RunDiff diff = diff_runs(a.profile, b.profile, {.fail_above = 0.04});
  EXPECT_EQ(diff.verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(diff.step.change, 0.06, 0.01);
  EXPECT_TRUE(diff.regression);
  EXPECT_THAT(diff.conclusion, HasSubstr("B is slower: its median batch takes "));
  EXPECT_EQ(phase_of(diff, "train_batch.forward").verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(phase_of(diff, "train_batch.forward").change, 0.06, 0.01);
  EXPECT_EQ(phase_of(diff, "train_batch.backward").verdict, DiffVerdict::kNoChange);
  EXPECT_EQ(diff.a.warm_up, 40);
  EXPECT_EQ(diff.a.steps, 360);
  EXPECT_FALSE(diff_runs(a.profile, b.profile, {.fail_above = 0.08}).regression) << "below";
  EXPECT_FALSE(diff_runs(a.profile, b.profile).regression) << "nobody asked";
  const RunDiff back = diff_runs(b.profile, a.profile, {.fail_above = 0.04});
  EXPECT_EQ(back.verdict, DiffVerdict::kBetter);
  EXPECT_FALSE(back.regression);
}

TEST(Diff, FindsNothingInRunsThatAreAlike) {
  const Synthetic a(slower_by(0, 3)), b(slower_by(0, 4));
  const RunDiff diff = diff_runs(a.profile, b.profile, {.fail_above = 0.001});
  EXPECT_EQ(diff.verdict, DiffVerdict::kNoChange) << diff.conclusion;
  EXPECT_FALSE(diff.regression);
  EXPECT_DOUBLE_EQ(diff.min_effect, 0.001) << "whoever asks for less than 1% gets it";
  EXPECT_THAT(diff.conclusion, HasSubstr("no change found in the median batch (99% interval "));
  EXPECT_THAT(diff.new_rules, IsEmpty());
  EXPECT_THAT(diff.new_faults, IsEmpty());
  EXPECT_THAT(diff.differences, IsEmpty());
}

TEST(Diff, IsTheSameEveryTime) {
  const Synthetic a(slower_by(0, 1)), b(slower_by(0.01, 2));
  EXPECT_EQ(to_line(to_json(diff_runs(a.profile, b.profile))), to_line(to_json(diff_runs(a.profile, b.profile))));
}

TEST(Diff, ComparesGroupsWhereADumpHasWindows) {
  test::SyntheticRun run = slower_by(0, 5);
  run.steps = 8000;
  run.detail_steps = 2000;
  test::SyntheticRun other = slower_by(0.05, 6);
  other.steps = 5000;
  other.detail_steps = 5000;  // all in full
  const Synthetic a(run), b(other);
  run.seed = 7;
  const Synthetic same(run);
  const RunDiff diff = diff_runs(a.profile, b.profile);
  EXPECT_TRUE(diff.grouped);
  EXPECT_NEAR(static_cast<double>(diff.a.observations), 79, 1) << "of a hundred steps each";
  EXPECT_EQ(diff.verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(diff.step.change, 0.05, 0.005);
  EXPECT_EQ(diff_runs(a.profile, same.profile).verdict, DiffVerdict::kNoChange);
  other.steps = 300;
  const Synthetic brief(other);
  const RunDiff uneven = diff_runs(a.profile, brief.profile);
  EXPECT_FALSE(uneven.grouped) << "too few groups of the other";
  EXPECT_EQ(uneven.a.steps, 1900) << "those in full, without the warm-up";
  EXPECT_EQ(uneven.verdict, DiffVerdict::kWorse);
}

TEST(Diff, LeavesValidationOut) {
  test::SyntheticRun run = slower_by(0, 8);
  const auto slower = run.change;
  run.change = [slower](int rank, std::int64_t batch, test::SyntheticStep& step) {
    slower(rank, batch, step);
    if (batch % 20 == 0) phase(step, profile::Phase::kValidation) = 500 * kMs;
  };
  const Synthetic a(slower_by(0, 9)), b(run);
  const RunDiff diff = diff_runs(a.profile, b.profile);
  EXPECT_EQ(diff.verdict, DiffVerdict::kNoChange) << diff.conclusion;
  EXPECT_EQ(diff.throughput.verdict, DiffVerdict::kNoChange);
  EXPECT_EQ(diff.b.long_steps, 0);
}

TEST(Diff, OtherWorkIsComparedByThroughput) {
  const RunProfile a = make_run(ar_steps(300, 10, 0.02, 0.3, 1));
  const RunProfile b = make_run(ar_steps(300, 12, 0.02, 0.3, 2), {.ranks = 4});
  const RunDiff diff = diff_runs(a, b);
  EXPECT_FALSE(diff.same_work);
  EXPECT_EQ(diff.why_not, "global_batch_size 64 and 128; world_size 2 and 4");
  EXPECT_EQ(diff.step.verdict, DiffVerdict::kUndecided);
  EXPECT_EQ(diff.verdict, DiffVerdict::kBetter) << "a longer step with more samples in it";
  EXPECT_NEAR(diff.throughput.change, 2 / 1.2 - 1, 0.03);
  EXPECT_THAT(render_diff(diff, {}), HasSubstr("do different work (global_batch_size 64 and 128; world_size 2 and 4)"));
}

TEST(Diff, ARunThatCannotBeJudged) {
  const RunProfile some = make_run(ar_steps(300, 10, 0.02, 0.3, 1));
  const RunProfile few = make_run(ar_steps(20, 10, 0.02, 0.3, 2));
  const RunDiff diff = diff_runs(some, few);
  EXPECT_EQ(diff.verdict, DiffVerdict::kUndecided);
  EXPECT_THAT(diff.conclusion, HasSubstr("too few batches"));
  EXPECT_THROW(diff_runs(some, few, {.fail_above = 0.05}), ConfigError) << "silence would pass for success";
  try {
    diff_runs(some, make_run({}));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no batches were recorded"));
  }
  EXPECT_THROW(diff_runs(some, make_run({10, 10, 10})), DataError) << "nothing but warm-up";
  RunProfile half = some;
  half.ranks.pop_back();
  try {
    diff_runs(some, half);
    FAIL() << "it would be half as fast";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the dumps of 1 of its 2 ranks are missing"));
  }
}

TEST(Diff, OfSingleRanks) {
  const MadeRun one{.ranks = 1};
  const RunDiff diff =
      diff_runs(make_run(ar_steps(300, 10, 0.02, 0, 1), one), make_run(ar_steps(300, 11, 0.02, 0, 2), one));
  EXPECT_EQ(diff.verdict, DiffVerdict::kWorse);
  EXPECT_THAT(diff.notes, testing::Contains(HasSubstr("no communication")));
}

TEST(Diff, NamesWhatDiffersInThePlans) {
  RunProfile a = make_run(std::vector<double>(50, 10)), b = make_run(std::vector<double>(50, 10));
  a.plan["experiment"] = {{"name", "x"}, {"optimizations", {{"gradient_compression", false}, {"level", 1}}}};
  b.plan["experiment"] = {{"name", "y"}, {"optimizations", {{"gradient_compression", "fp16"}, {"level", 1}}}};
  b.plan["fusion"] = {{"buckets", {{{"bytes", 1}}, {{"bytes", 2}}}}};
  b.ranks[1].host = "other";
  b.plan["strategy"] = {{"replicated_ms", 3.1}, {"sharded_ms", 3.2}, {"turns", {{{"first_batch", 4}}}}};
  b.plan["compression"] = {{"gained_s", 1.5}, {"saturated_values", 3}};
  std::vector<std::string> said;
  for (const DiffEntry& entry : diff_runs(a, b).differences) {
    said.push_back(entry.key + ": " + entry.a + " -> " + entry.b);
  }
  EXPECT_THAT(said, ElementsAre("experiment.optimizations.gradient_compression: false -> fp16",
                                "fusion.buckets: - -> 2", "hosts: node -> node, other"));
}

TEST(Diff, MemoryAndRules) {
  RunProfile a = make_run(ar_steps(300, 10, 0.02, 0.3, 1)), b = make_run(ar_steps(300, 10, 0.02, 0.3, 2));
  constexpr std::int64_t kMiB = 1 << 20;
  for (int rank = 0; rank < 2; ++rank) {
    a.ranks[rank].memory.push_back({.resident_bytes = 100 * kMiB, .peak_bytes = 100 * kMiB});
    b.ranks[rank].memory.push_back({.resident_bytes = 100 * kMiB, .peak_bytes = (105 + 45 * rank) * kMiB});
  }
  for (StepLine& step : b.ranks[0].steps) {
    if (step.batch % 20 != 0) continue;
    step.wall_ns += 200 * kMs;
    step.phases[0] += 200 * kMs;
  }
  const RunDiff diff = diff_runs(a, b);
  ASSERT_EQ(diff.memory.size(), 2U);
  EXPECT_FALSE(diff.memory[0].stands_out);
  EXPECT_TRUE(diff.memory[1].stands_out);
  EXPECT_EQ(diff.memory[1].b_bytes, 150.0 * kMiB);
  ASSERT_THAT(diff.new_rules, Not(IsEmpty()));
  EXPECT_EQ(diff.new_rules[0].name, "StepOutlier");
  EXPECT_EQ(diff.new_rules[0].text, "5 steps, of 600 data points judged") << "15, less the first 10 of the rank";
  EXPECT_TRUE(diff.new_rules[0].may_be_chance) << "1 in 32";
  EXPECT_THAT(diff.gone_rules, IsEmpty());
  const RunDiff back = diff_runs(b, a);
  EXPECT_THAT(back.new_rules, IsEmpty());
  EXPECT_EQ(back.gone_rules.size(), diff.new_rules.size());
  EXPECT_EQ(back.gone_faults.size(), diff.new_faults.size());
}

TEST(Diff, ItsJsonSaysEverything) {
  const Synthetic a(slower_by(0, 1)), b(slower_by(0.06, 2));
  const Json json = to_json(diff_runs(a.profile, b.profile, {.fail_above = 0.04}));
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("verdict"), "worse");
  EXPECT_EQ(json.at("regression"), true);
  EXPECT_EQ(json.at("fail_above"), 0.04);
  for (const char* side : {"a", "b"}) {
    for (const char* key :
         {"name", "run_dir", "world_size", "global_batch_size", "steps", "first_batch", "warm_up_steps", "long_steps",
          "long_share", "observations", "autocorrelation", "block_length", "warnings"}) {
      EXPECT_TRUE(json.at(side).contains(key)) << key;
    }
  }
  for (const char* key : {"a_s", "b_s", "change", "interval", "verdict"}) {
    EXPECT_TRUE(json.at("step").contains(key)) << key;
    EXPECT_TRUE(json.at("exposed_communication").contains(key)) << key;
  }
  EXPECT_LT(json.at("step").at("interval")[0].get<double>(), json.at("step").at("interval")[1].get<double>());
  EXPECT_EQ(json.at("phases").size(), profile::kPhaseCount - 2) << "all but validation and checkpoint";
  EXPECT_EQ(json.at("test").at("confidence"), 0.99);
  EXPECT_EQ(json.at("test").at("min_effect"), 0.01);
  EXPECT_EQ(json.at("test").at("turns"), 0);
  EXPECT_EQ(json.at("memory").size(), 2U);
  EXPECT_EQ(json.at("why_not_same_work"), nullptr);
  for (const char* key : {"rules", "faults"}) {
    EXPECT_TRUE(json.at(key).at("new").is_array());
    EXPECT_TRUE(json.at(key).at("gone").is_array());
  }
}

TEST(Diff, ItsTextSaysWhatWasComparedAndHow) {
  const Synthetic a(slower_by(0, 1)), b(slower_by(0.06, 2));
  const std::string text = render_diff(diff_runs(a.profile, b.profile, {.fail_above = 0.04}), {});
  for (const char* part :
       {"A  synthetic  2 ranks, global batch 64, 360 batches", "from batch 41 on, after 40 of warm-up", "B is slower",
        "a regression: more than 4.0%", "median batch", "samples/s", "exposed communication", "train_batch.forward",
        "Peak memory", "About this comparison", "not made in turns"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace dtrain::analysis
