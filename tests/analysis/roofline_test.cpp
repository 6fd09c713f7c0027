// FLOPs, MFU, the part of the waterfall that the hardware allows, and what follows from operators and limits.
#include "dtrain/analysis/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/report.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/file.h"
#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::OperatorCount;
using profile::OperatorCounts;
using test::SyntheticRun;
using testing::HasSubstr;
using testing::Not;

constexpr double kMsOfS = 1e-3;

// Of a synthetic batch: 9 ms of computing, 32 samples. At the limits below: 2 + 1 + 0.2 ms.
std::vector<OperatorCount> operators() {
  return {{.name = "aten::addmm",
           .dtype = "float32",
           .shapes = {{512}, {32, 512}, {512, 512}},
           .calls = 2,
           .flops = 400'000'000,
           .bytes = 1'000'000,
           .seconds = 4 * kMsOfS},
          {.name = "aten::convolution",
           .dtype = "float32",
           .format = "contiguous",
           .shapes = {{32, 64, 14, 14}, {64, 64, 3, 3}, {64}},
           .calls = 1,
           .flops = 200'000'000,
           .bytes = 1'000'000,
           .seconds = 2 * kMsOfS},
          {.name = "aten::relu", .dtype = "float32", .calls = 3, .bytes = 2'000'000, .seconds = 1 * kMsOfS}};
}

constexpr const char* kLimits = R"({"threads":1,"memory_gb_s":10,"gflops":{"float32":200,"bfloat16":800},)"
                                R"("convolution_gflops":{"float32":200,"bfloat16":400}})";

class CountedRun {
 public:
  explicit CountedRun(SyntheticRun plan = {}) : plan_(std::move(plan)) {
    test::write_synthetic_run(folder.path(), plan_);
    json = read_json(folder.path() / "plan.json");
    for (int rank = 0; rank < plan_.ranks; rank += plan_.ranks_per_host) {
      json["limits"]["node" + std::to_string(rank / plan_.ranks_per_host)] = Json::parse(kLimits);
    }
  }

  Analysis analysed() {
    write_file_atomic(folder.path() / "plan.json", json.dump());
    for (int rank = 0; rank < plan_.ranks && write_counts; ++rank) {
      const OperatorCounts counts{.rank = rank,
                                  .host = "node" + std::to_string(rank / plan_.ranks_per_host),
                                  .device = device,
                                  .batch = 33,
                                  .samples = 32,
                                  .counted = 6,
                                  .flops_per_sample = 6e8 / 32,
                                  .dtype = "float32",
                                  .operators = rows};
      write_file_atomic(folder.path() / "profile" / profile::operators_file_name(rank), to_json(counts).dump());
    }
    profile = load_run(folder.path());
    return analyze(profile);
  }

  RunFolder folder;
  Json json;
  std::vector<OperatorCount> rows = operators();
  std::string device = "cpu";
  bool write_counts = true;
  RunProfile profile;

 private:
  SyntheticRun plan_;
};

void expect_whole_roofline(const Waterfall& waterfall) {
  double share = 0;
  for (const WaterfallPart& one : waterfall.parts) {
    share += one.share;
    EXPECT_GE(one.seconds, -1e-9) << one.name;
  }
  EXPECT_NEAR(share, 1, 1e-9);
}

const Finding* find(const Analysis& analysis, const std::string& id) {
  for (const Finding& one : analysis.findings) {
    if (one.id == id) return &one;
  }
  return nullptr;
}

const Prediction* predicted(const Analysis& analysis, const std::string& name) {
  for (const Prediction& one : analysis.what_if.changes) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

TEST(Roofline, MfuIsWhatIsComputedOfWhatAllRanksCouldCompute) {
  CountedRun run;
  const Analysis analysis = run.analysed();
  ASSERT_TRUE(analysis.summary.compute);
  const ComputeAccount& compute = *analysis.summary.compute;
  const double flops_per_s = 6e8 / 32 * analysis.summary.training_samples_per_s;
  EXPECT_NEAR(compute.achieved_gflops, flops_per_s / 1e9, 1e-9);
  EXPECT_EQ(compute.limit_gflops, 400);
  EXPECT_NEAR(*compute.mfu, flops_per_s / 400e9, 1e-12);
  EXPECT_NEAR(compute.flops_per_step, 2 * 6e8, 1);  // of both ranks
  EXPECT_NEAR(*compute.achieved_gb_s, 2 * 2e6 / (1 * kMsOfS) / 1e9, 1e-9);
  EXPECT_EQ(compute.limit_gb_s, 20);
  const Json json = to_json(analysis.summary);
  EXPECT_EQ(json["mfu"], *compute.mfu);
  EXPECT_EQ(json["limit_gflops"], 400);
  EXPECT_EQ(json["flops_per_step"], compute.flops_per_step);
  EXPECT_EQ(json["achieved_gflops"], compute.achieved_gflops);
  EXPECT_THAT(render_summary(analysis.summary, {.width = 300}), HasSubstr("1.20 GFLOP a batch"));
  EXPECT_THAT(render_summary(analysis.summary, {.width = 300}), HasSubstr("of 400 GFLOP/s"));
  EXPECT_THAT(render_report(run.profile, analysis), HasSubstr("id=\"roofline\""));
}

TEST(Roofline, AnOperatorsIdealIsTheLongerOfComputingAndMoving) {
  CountedRun run;
  run.rows.push_back(
      {.name = "aten::mul", .dtype = "float32", .calls = 1, .bytes = 50'000'000, .seconds = 1 * kMsOfS});  // in a cache
  run.rows.push_back({.name = "aten::mm",
                      .dtype = "float64",
                      .shapes = {{8, 8}, {8, 8}},
                      .calls = 1,
                      .flops = 1024,
                      .bytes = 1536,
                      .seconds = 1e-6});
  const Analysis analysis = run.analysed();
  const auto& rows = analysis.roofline.operators;
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[0].name, "aten::addmm");  // 2 ms beyond its ideal
  EXPECT_NEAR(*rows[0].ideal_s, 2 * kMsOfS, 1e-12);
  EXPECT_FALSE(rows[0].by_memory);
  EXPECT_EQ(rows[1].name, "aten::convolution");
  EXPECT_NEAR(*rows[1].ideal_s, 1 * kMsOfS, 1e-12);
  EXPECT_EQ(rows[2].name, "aten::relu");
  EXPECT_NEAR(*rows[2].ideal_s, 0.2 * kMsOfS, 1e-12);
  EXPECT_TRUE(rows[2].by_memory);
  EXPECT_EQ(rows[3].name, "aten::mul");
  EXPECT_EQ(*rows[3].ideal_s, rows[3].seconds);
  EXPECT_EQ(rows[4].ideal_s, std::nullopt);  // no limit for its type
  EXPECT_EQ(to_json(analysis.roofline)["operators"][4]["ideal_s"], nullptr);
}

TEST(Roofline, TheWaterfallBeginsAtWhatTheHardwareAllows) {
  CountedRun run;
  const Analysis analysis = run.analysed();
  const Waterfall& waterfall = analysis.waterfall;
  expect_whole_roofline(waterfall);
  ASSERT_GE(waterfall.parts.size(), 2U);
  EXPECT_EQ(waterfall.parts[0].name, "hardware");
  EXPECT_EQ(waterfall.parts[1].name, "slower_kernels");
  EXPECT_NEAR(waterfall.part_s("hardware"), 200 * 3.2 * kMsOfS, 1e-9);
  EXPECT_NEAR(waterfall.part_s("compute"), 200 * 9 * kMsOfS, 0.02);
  EXPECT_NEAR(*waterfall.hardware_samples_per_s, 64 / (3.2 * kMsOfS), 1e-6);
  EXPECT_THAT(render_analysis(analysis, {.width = 200}), HasSubstr("slower kernels"));
  EXPECT_THAT(render_report(run.profile, analysis), HasSubstr("slower_kernels"));
}

TEST(Roofline, WithoutALimitOfEveryRankTheWaterfallIsWhole) {
  for (const bool limits : {false, true}) {
    SyntheticRun plan;
    plan.ranks = 4;
    CountedRun run(plan);
    limits ? run.json["limits"].erase("node1") : run.json.erase("limits");
    const Analysis analysis = run.analysed();
    expect_whole_roofline(analysis.waterfall);
    EXPECT_EQ(analysis.waterfall.parts.front().name, "compute");
    EXPECT_EQ(analysis.waterfall.hardware_samples_per_s, std::nullopt);
    EXPECT_EQ(analysis.summary.compute->mfu, std::nullopt);
    EXPECT_EQ(to_json(analysis.summary)["mfu"], nullptr);
    EXPECT_THAT(analysis.summary.compute->without_mfu, HasSubstr("dtrain doctor --bench"));
    EXPECT_THAT(render_summary(analysis.summary, {.width = 300}), HasSubstr("no MFU"));
  }
}

TEST(Roofline, TheHardwaresPartIsNeverMoreThanComputingTakes) {
  CountedRun run;
  for (OperatorCount& row : run.rows) *row.seconds *= 10;  // counted while the machine was slow, …
  run.json["limits"]["node0"]["gflops"]["float32"] = 20;   // … and calibrated then, too
  const Analysis analysis = run.analysed();
  expect_whole_roofline(analysis.waterfall);
  EXPECT_EQ(analysis.waterfall.part_s("slower_kernels"), 0);
}

TEST(Roofline, LongRunsAndOneRankAreWholeToo) {
  for (const int ranks : {1, 3}) {
    SyntheticRun plan;
    plan.ranks = ranks;
    plan.steps = 2'500;
    plan.detail_steps = 1'000;
    CountedRun run(plan);
    const Analysis analysis = run.analysed();
    expect_whole_roofline(analysis.waterfall);
    EXPECT_NEAR(analysis.waterfall.part_s("hardware"), 2'500 * 3.2 * kMsOfS, 1e-6);
    EXPECT_TRUE(analysis.summary.compute->mfu);
  }
}

TEST(Roofline, ARunThatEndedEarlyHasTheFlopsOfThePlan) {
  CountedRun run;
  run.write_counts = false;
  run.json["flops"] = {{"per_sample", 1e6}, {"dtype", "bfloat16"}, {"device", "cpu"}};
  const Analysis analysis = run.analysed();
  expect_whole_roofline(analysis.waterfall);
  EXPECT_EQ(analysis.waterfall.parts.front().name, "compute");  // operators are not known
  EXPECT_EQ(analysis.summary.compute->limit_gflops, 1600);
  EXPECT_NEAR(*analysis.summary.compute->mfu, analysis.summary.training_samples_per_s * 1e6 / 1600e9, 1e-12);
  EXPECT_THAT(render_report(run.profile, analysis), HasSubstr("No times of operators."));
}

TEST(Roofline, GpusHaveFlopsAndNoLimit) {
  CountedRun run;
  run.device = "cuda";
  for (OperatorCount& row : run.rows) row.seconds.reset();
  const Analysis analysis = run.analysed();
  EXPECT_EQ(analysis.waterfall.parts.front().name, "compute");
  EXPECT_GT(analysis.summary.compute->achieved_gflops, 0);
  EXPECT_EQ(analysis.summary.compute->mfu, std::nullopt);
  EXPECT_THAT(analysis.summary.compute->without_mfu, HasSubstr("GPUs"));
  EXPECT_TRUE(analysis.roofline.operators.empty());
}

constexpr const char* kGpuLimits = R"([{"gpu":"Card","driver":"580.1","application_clock":null,"most_clock":1980,)"
                                   R"("gflops":{"float32":100,"tf32":400,"bfloat16":800},"memory_read_gb_s":12,)"
                                   R"("memory_copy_gb_s":10,"launch_us":5}])";

// A run of two ranks on one host, each with a GPU "Card".
class GpuRun : public CountedRun {
 public:
  GpuRun() {
    device = "cuda";
    for (OperatorCount& row : rows) row.seconds.reset();
    json.erase("limits");
    json["gpu_limits"]["node0"] = Json::parse(kGpuLimits);
    json["ranks"] = Json::array();
    for (int rank = 0; rank < 2; ++rank) {
      json["ranks"].push_back({{"rank", rank}, {"host", "node0"}, {"gpu", {{"uuid", ""}, {"name", "Card"}}}});
    }
  }
};

TEST(Roofline, OfGpusHasTheLimitOfThePrecisionThatIsUsed) {
  GpuRun run;
  const Analysis tf32 = run.analysed();
  const ComputeAccount& compute = *tf32.summary.compute;
  EXPECT_EQ(compute.limit_gflops, 800) << "two cards of 400 with TF32, which is on unless it is turned off";
  EXPECT_EQ(compute.limit_dtype, "tf32");
  EXPECT_NEAR(*compute.mfu, compute.achieved_gflops / 800, 1e-12);
  EXPECT_EQ(compute.limit_gb_s, 20);
  EXPECT_EQ(compute.achieved_gb_s, std::nullopt) << "no operator of a GPU has a time";
  EXPECT_EQ(to_json(tf32.summary)["mfu"], *compute.mfu);
  EXPECT_EQ(to_json(tf32.summary)["limit_dtype"], "tf32");
  EXPECT_THAT(render_summary(tf32.summary, {.width = 300}), HasSubstr("of 800 GFLOP/s in tf32"));
  EXPECT_THAT(render_report(run.profile, tf32), HasSubstr("the longest first"));

  run.json["experiment"] = {{"optimizations", {{"tf32", false}}}};
  const Analysis float32 = run.analysed();
  EXPECT_EQ(float32.summary.compute->limit_gflops, 200);
  EXPECT_EQ(float32.summary.compute->limit_dtype, "float32");
  EXPECT_THAT(render_summary(float32.summary, {.width = 300}), Not(HasSubstr("FLOP/s in tf32")));
}

TEST(Roofline, OperatorsOfGpusHaveIdealTimesAlone) {
  GpuRun run;
  const Analysis analysis = run.analysed();
  const auto& rows = analysis.roofline.operators;  // addmm 4e8 FLOPs, convolution 2e8, relu 2 MB
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].name, "aten::addmm");
  EXPECT_NEAR(*rows[0].ideal_s, 1 * kMsOfS, 1e-12);
  EXPECT_NEAR(*rows[1].ideal_s, 0.5 * kMsOfS, 1e-12);
  EXPECT_NEAR(*rows[2].ideal_s, 0.2 * kMsOfS, 1e-12);
  EXPECT_TRUE(rows[2].by_memory);
  EXPECT_FALSE(rows[0].by_memory);
  const Json json = to_json(analysis.roofline);
  EXPECT_EQ(json["operators"][0]["seconds"], nullptr);
  EXPECT_EQ(json["gpu_limits"]["gpu"], "Card");
  EXPECT_NEAR(*analysis.roofline.ideal_s, 200 * 1.7 * kMsOfS, 1e-9);
  EXPECT_NEAR(*analysis.roofline.ideal_memory_s, 200 * 0.2 * kMsOfS, 1e-9);
  const Waterfall& waterfall = analysis.waterfall;
  expect_whole_roofline(waterfall);
  EXPECT_EQ(waterfall.parts[0].name, "products");
  EXPECT_EQ(waterfall.parts[1].name, "memory_bound");
  EXPECT_EQ(waterfall.parts[2].name, "slower_kernels");
  EXPECT_NEAR(waterfall.part_s("products"), 200 * 1.5 * kMsOfS, 1e-9);
  EXPECT_NEAR(waterfall.part_s("memory_bound"), 200 * 0.2 * kMsOfS, 1e-9);
  EXPECT_NEAR(waterfall.part_s("compute"), 200 * 9 * kMsOfS, 0.02);
  EXPECT_NEAR(*waterfall.hardware_samples_per_s, 64 / (1.7 * kMsOfS), 1e-6);
  for (const char* id : {"bf16", "float32", "small_operators", "odd_sizes", "slow_operators", "division"}) {
    EXPECT_EQ(find(analysis, id), nullptr) << id << " needs measured times";
  }
}

TEST(Roofline, ACardThatChangedHasNoLimits) {
  GpuRun run;
  run.json["ranks"][1]["gpu"]["name"] = "Another card";
  const Analysis analysis = run.analysed();
  expect_whole_roofline(analysis.waterfall);
  EXPECT_EQ(analysis.waterfall.parts.front().name, "compute");
  EXPECT_EQ(analysis.summary.compute->mfu, std::nullopt);
  EXPECT_THAT(analysis.summary.compute->without_mfu,
              HasSubstr("no limit of Another card for tf32: run 'dtrain doctor"));

  run.json["gpu_limits"]["node0"].push_back(Json::parse(kGpuLimits)[0]);
  run.json["gpu_limits"]["node0"][1]["gpu"] = "Another card";
  run.json["gpu_limits"]["node0"][1]["gflops"]["tf32"] = 100;
  EXPECT_EQ(run.analysed().summary.compute->limit_gflops, 500) << "each rank has the limits of its own card";

  run.json["ranks"] = Json::array();  // which rank has which card is not known
  EXPECT_EQ(run.analysed().summary.compute->mfu, std::nullopt);
  run.json["gpu_limits"]["node0"].erase(1);
  EXPECT_TRUE(run.analysed().summary.compute->mfu) << "there is one kind";
}

TEST(Roofline, OfGpusIsNeverOfTheirHostsProcessors) {
  GpuRun run;
  run.json.erase("gpu_limits");
  run.json["limits"]["node0"] = Json::parse(kLimits);
  const Analysis analysis = run.analysed();
  EXPECT_EQ(analysis.summary.compute->mfu, std::nullopt);
  EXPECT_EQ(analysis.waterfall.parts.front().name, "compute");
  EXPECT_TRUE(analysis.roofline.operators.empty());
}

TEST(Roofline, ADamagedFileIsAWarning) {
  CountedRun run;
  run.analysed();
  const fs::path file = run.folder.path() / "profile" / profile::operators_file_name(1);
  write_file_atomic(file, R"({"schema":1,"rank":1,"samples":-3,"operators":[{"flops":"many"},7]})");
  RunProfile damaged = load_run(run.folder.path());
  ASSERT_EQ(damaged.operator_counts.size(), 1U);
  EXPECT_THAT(damaged.warnings, testing::Contains(HasSubstr("operators-rank-0001.json")));
  write_file_atomic(file, R"({"schema":7,"rank":1,"samples":32})");
  EXPECT_THAT(load_run(run.folder.path()).warnings, testing::Contains(HasSubstr("its schema is 7")));
  expect_whole_roofline(analyze(damaged).waterfall);  // rank 1 counts as rank 0
  EXPECT_EQ(analyze(damaged).waterfall.parts.front().name, "hardware");
}

TEST(Roofline, Bfloat16IsPredictedFromTheLimitsAndFound) {
  CountedRun run;
  const Analysis analysis = run.analysed();
  const Prediction* const bf16 = predicted(analysis, "bf16");
  ASSERT_NE(bf16, nullptr);
  // A quarter of 4 ms, half of 2 ms, and casting 1 MB of each.
  const double saved_s = (4 * 0.75 + 2 * 0.5 - 2 * 0.15) * kMsOfS;
  EXPECT_NEAR(analysis.what_if.step_s - bf16->step_s, saved_s, 0.01 * saved_s);
  EXPECT_EQ(bf16->set, "optimizations.mixed_precision=bf16");
  const Finding* const finding = find(analysis, "float32");
  ASSERT_NE(finding, nullptr);
  EXPECT_NEAR(finding->seconds, 200 * saved_s, 0.01 * finding->seconds);
  EXPECT_THAT(finding->advice, HasSubstr("optimizations.mixed_precision: bf16"));

  CountedRun mixed;
  mixed.json["experiment"]["optimizations"]["mixed_precision"] = "bf16";
  EXPECT_EQ(predicted(mixed.analysed(), "bf16"), nullptr);
  CountedRun unknown;
  unknown.json["limits"]["node0"]["gflops"].erase("bfloat16");
  EXPECT_EQ(find(unknown.analysed(), "float32"), nullptr);
  CountedRun no_faster;
  no_faster.json["limits"]["node0"]["gflops"]["bfloat16"] = 150;
  no_faster.json["limits"]["node0"]["convolution_gflops"]["bfloat16"] = 150;
  EXPECT_EQ(predicted(no_faster.analysed(), "bf16"), nullptr);
}

TEST(Roofline, ChannelsLastIsPredictedForConvolutionsThatCanUseIt) {
  CountedRun run;
  const Analysis analysis = run.analysed();
  const Prediction* const last = predicted(analysis, "channels_last");
  ASSERT_NE(last, nullptr);
  EXPECT_NEAR(analysis.what_if.step_s - last->step_s, 1 * kMsOfS, 0.02 * kMsOfS);
  EXPECT_EQ(last->set, "optimizations.memory_format=channels_last");
  EXPECT_THAT(find(analysis, "contiguous")->advice, HasSubstr("optimizations.memory_format: channels_last"));

  CountedRun few;
  few.rows[1].shapes[1] = {64, 3, 3, 3};
  EXPECT_EQ(predicted(few.analysed(), "channels_last"), nullptr);
  CountedRun chosen;  // both were measured
  chosen.json["experiment"]["optimizations"]["memory_format"] = "auto";
  EXPECT_EQ(predicted(chosen.analysed(), "channels_last"), nullptr);
  CountedRun already;
  already.rows[1].format = "channels_last";
  EXPECT_EQ(predicted(already.analysed(), "channels_last"), nullptr);
}

TEST(Roofline, SlowProductsAreExplainedByBatchesAndSizes) {
  CountedRun small;  // 100 of 300 GFLOP/s, 32 rows
  small.json["limits"]["node0"]["gflops"]["float32"] = 300;
  const Analysis found = small.analysed();
  ASSERT_NE(find(found, "small_batch"), nullptr);
  EXPECT_THAT(find(found, "small_batch")->advice, HasSubstr("global_batch_size"));
  EXPECT_THAT(find(found, "small_batch")->evidence, HasSubstr("32x512 by 512x512"));
  EXPECT_EQ(find(found, "odd_sizes"), nullptr);

  CountedRun odd;
  odd.json["limits"]["node0"]["gflops"]["float32"] = 300;
  odd.rows[0].shapes = {{513}, {256, 511}, {511, 513}};
  const Analysis sizes = odd.analysed();
  EXPECT_EQ(find(sizes, "small_batch"), nullptr);
  ASSERT_NE(find(sizes, "odd_sizes"), nullptr);
  EXPECT_THAT(find(sizes, "odd_sizes")->evidence, HasSubstr("aten::addmm of 256x511 by 511x513"));
  EXPECT_THAT(find(sizes, "odd_sizes")->advice, HasSubstr("multiples of 8"));

  CountedRun fast;  // at more than half of its limit
  fast.json["limits"]["node0"]["gflops"]["float32"] = 190;
  EXPECT_EQ(find(fast.analysed(), "small_batch"), nullptr);
}

TEST(Roofline, OperatorsThatOnlyMoveDataAreComparedWithTheMemory) {
  CountedRun run;
  const Analysis analysis = run.analysed();
  const Finding* const slow = find(analysis, "slow_operators");
  ASSERT_NE(slow, nullptr);
  EXPECT_NEAR(slow->seconds, 200 * 0.8 * kMsOfS, 1e-6);
  EXPECT_THAT(slow->evidence, HasSubstr("aten::relu"));
  CountedRun near;
  *near.rows[2].seconds = 0.5 * kMsOfS;
  EXPECT_EQ(find(near.analysed(), "slow_operators"), nullptr);
}

TEST(Roofline, CallsOnSmallTensorsAreAFindingOfTheirOwn) {
  CountedRun run;
  for (auto& row : run.rows) {  // 260 B and 1,000 FLOPs in 20 us
    row.calls = 3;
    row.bytes = 3 * 260;
    row.flops = row.flops > 0 ? 3000 : 0;
    row.seconds = 60e-6;
  }
  const Analysis analysis = run.analysed();
  const Finding* const small = find(analysis, "small_operators");
  ASSERT_NE(small, nullptr);
  EXPECT_NEAR(small->seconds, 200 * 3 * 60e-6, 0.01 * small->seconds);
  EXPECT_THAT(small->evidence, HasSubstr("9 calls a batch take 180 us"));
  EXPECT_THAT(small->advice, HasSubstr("global_batch_size"));
  for (const char* id : {"float32", "contiguous", "small_batch", "odd_sizes", "slow_operators"}) {
    EXPECT_EQ(find(analysis, id), nullptr) << id;
  }
  CountedRun large;
  EXPECT_EQ(find(large.analysed(), "small_operators"), nullptr);
  run.rows[2].seconds = 600e-6;  // so slow that it is not the call
  EXPECT_NE(find(run.analysed(), "slow_operators"), nullptr);
}

// Two ranks on one host, with an exchange of 2 ms.
SyntheticRun divided_plan(std::int64_t update_ms) {
  SyntheticRun plan;
  plan.change = [update_ms](int, std::int64_t, test::SyntheticStep& step) {
    phase(step, profile::Phase::kOptimizerStep) = update_ms * kMs;
    step.exchange_ns = 2 * kMs;
  };
  return plan;
}

TEST(Roofline, AnotherDivisionOfTheCoresIsAdvisedWhereItIsPredictedToBeFaster) {
  // Of a step: products take 3 ms beyond their FLOPs, of which the traffic of 3 x 8 MB at 10 GB/s explains 2.4. Half of
  // that, half of 5 ms of updates and the exchange of 2 ms go, the 1 ms of other operators doubles.
  CountedRun run(divided_plan(5));
  run.json["model"] = {{"bytes", 8e6}};
  const Analysis analysis = run.analysed();
  const Finding* const found = find(analysis, "division");
  ASSERT_NE(found, nullptr);
  const double saved_ms = 0.5 * 2.4 + 0.5 * 5 + 2 - 1;
  EXPECT_NEAR(found->seconds, 200 * saved_ms * kMsOfS, 0.1 * 200 * saved_ms * kMsOfS) << found->evidence;
  EXPECT_THAT(found->title, HasSubstr("1 rank x 2 threads on the same cores"));
  EXPECT_THAT(found->advice, HasSubstr("set resources.slots_per_trial: 1, or auto"));
  EXPECT_THAT(found->evidence, HasSubstr("8.00 MB"));
  EXPECT_FALSE(found->fault);

  // What the experiment asks for counts: advice can be followed.
  run.json["cluster"] = "this machine";
  run.json["experiment"] = {{"resources", {{"slots_per_trial", 2}, {"cores_per_slot", 1}, {"max_slots", nullptr}}},
                            {"optimizations", {{"local_sgd", nullptr}}}};
  const Analysis few_cores = run.analysed();
  ASSERT_NE(find(few_cores, "division"), nullptr);
  EXPECT_THAT(find(few_cores, "division")->advice,
              HasSubstr("set resources.slots_per_trial: 1 and resources.cores_per_slot: 2:"));
  run.json["cluster"] = "cluster.yaml";
  EXPECT_EQ(find(run.analysed(), "division"), nullptr) << "declared slots";
  run.json["cluster"] = "this machine";
  run.json["experiment"]["optimizations"]["local_sgd"] = {{"inner_steps", 4}};
  EXPECT_EQ(find(run.analysed(), "division"), nullptr) << "another number of ranks trains something else";
  run.json.erase("experiment");

  *run.rows[2].seconds = 5 * kMsOfS;  // other operators, which gain nothing from threads
  EXPECT_EQ(find(run.analysed(), "division"), nullptr);
  run.json.erase("limits");
  *run.rows[2].seconds = 1 * kMsOfS;
  EXPECT_EQ(find(run.analysed(), "division"), nullptr);

  CountedRun sharded(divided_plan(5));  // each rank updates its part, so nothing of it goes
  sharded.json["model"] = {{"bytes", 1e6}};
  sharded.json["strategy"] = {{"strategy", "sharded"}, {"one_copy", true}};
  *sharded.rows[2].seconds = 2 * kMsOfS;
  EXPECT_EQ(find(sharded.analysed(), "division"), nullptr);
}

TEST(Roofline, MoreRanksAreAdvisedWhereThreadsHaveNoWork) {
  SyntheticRun plan;
  plan.ranks = plan.ranks_per_host = 1;
  CountedRun run(plan);  // the rank takes 95% of one core
  run.json["limits"]["node0"]["threads"] = 2;
  run.json["model"] = {{"bytes", 1e6}};
  const Analysis analysis = run.analysed();
  const Finding* const found = find(analysis, "division");
  ASSERT_NE(found, nullptr);
  EXPECT_THAT(found->title, HasSubstr("2 ranks x 1 thread on the same cores"));
  EXPECT_THAT(found->evidence, HasSubstr("the 2 threads of a rank work 50% of the time"));
  run.json["cluster"] = "this machine";
  run.json["experiment"] = {{"resources", {{"max_slots", 1}}}};
  EXPECT_EQ(find(run.analysed(), "division"), nullptr) << "max_slots";
  run.json.erase("experiment");
  run.json["model"] = {{"bytes", 40e6}};  // their exchange takes more
  EXPECT_EQ(find(run.analysed(), "division"), nullptr);

  plan.foreign_percent = [](int) { return 40.0; };  // another program has the cores
  CountedRun disturbed(plan);
  disturbed.json["limits"]["node0"]["threads"] = 2;
  disturbed.json["model"] = {{"bytes", 1e6}};
  EXPECT_EQ(find(disturbed.analysed(), "division"), nullptr);
}

TEST(Roofline, WithoutLimitsNothingIsClaimed) {
  CountedRun run;
  run.json.erase("limits");
  const Analysis analysis = run.analysed();
  for (const char* id : {"float32", "contiguous", "small_operators", "small_batch", "odd_sizes", "slow_operators"}) {
    EXPECT_EQ(find(analysis, id), nullptr) << id;
  }
  EXPECT_THAT(render_what_if(analysis, {.width = 200}), Not(HasSubstr("bfloat16")));
}

}  // namespace
}  // namespace dtrain::analysis
