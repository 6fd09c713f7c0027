// Planted faults, in dumps of runs that never were: the first finding must name cause, rank and cost.
#include "dtrain/analysis/analysis.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;
using testing::HasSubstr;
using testing::Not;

// The first finding is this one, and costs what was planted, to within a fifth.
void expect_first(const Synthetic& run, const char* cause, int rank, double seconds) {
  ASSERT_FALSE(run.analysis.findings.empty());
  const Finding& first = run.analysis.findings.front();
  EXPECT_EQ(first.cause, cause) << findings_text(run.analysis);
  EXPECT_EQ(first.rank, rank) << findings_text(run.analysis);
  EXPECT_NEAR(first.seconds, seconds, 0.2 * seconds) << findings_text(run.analysis);
  EXPECT_TRUE(first.fault);
  EXPECT_NEAR(first.share, first.seconds / run.truth.loop_s, 0.01);
}

TEST(Findings, AHealthyRunHasNoFault) {
  for (const int ranks : {1, 2, 8}) {
    SyntheticRun plan;
    plan.ranks = ranks;
    plan.steps = 400;
    const Synthetic run(plan);
    EXPECT_LE(run.worst_fault_share(), 0.03) << ranks << " ranks\n" << findings_text(run.analysis);
    EXPECT_TRUE(run.analysis.summary.warnings.empty()) << run.analysis.summary.warnings.front();
  }
}

TEST(Findings, ARankWhoseCoreAnotherProgramTakes) {
  SyntheticRun plan;
  plan.ranks = 4;
  plan.ranks_per_host = 4;
  plan.steps = 400;
  // On for 10 steps, off for 15.
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 2 && batch % 25 < 10) phase(step, Phase::kBackward) += 8 * kMs;
  };
  plan.foreign_percent = [](int rank) { return rank == 2 ? 25.0 : 1.0; };
  plan.cpu_wait_percent = [](int rank) { return rank == 2 ? 24.0 : 0.5; };
  const Synthetic run(plan);
  expect_first(run, "cpu_contention", 2, 160 * 0.008);
  EXPECT_THAT(run.analysis.findings.front().evidence, HasSubstr("25% of a core"));
  EXPECT_EQ(run.analysis.stragglers.ranks.front().cause, "cpu_contention");
}

TEST(Findings, ARankThatComputesMoreSlowly) {
  SyntheticRun plan;
  plan.ranks = 3;
  plan.ranks_per_host = 3;
  plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
    if (rank == 1) phase(step, Phase::kForward) += 3 * kMs;
  };
  expect_first(Synthetic(plan), "slow_compute", 1, 200 * 0.003);
}

TEST(Findings, ALoaderThatIsSlowEverywhere) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) {
    phase(step, Phase::kDataloaderNext) += 5 * kMs;
    step.queue_depth = 0;
  };
  const Synthetic run(plan);
  expect_first(run, "slow_loader", -1, 200 * 0.005);
  EXPECT_THAT(run.analysis.findings.front().evidence, HasSubstr("empty after 400 of 400 batches"));
}

// Exchanges of two buckets, 2 ms each, of which the engine would hide the first; and an update of 3 ms whose bytes take
// 0.5 ms: 28 of each of 700,000 parameters, at 80% of 49 GB/s. 200 steps.
TEST(Findings, AnUnchangedScriptThatWouldGainOnTheEngine) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) {
    phase(step, Phase::kOptimizerStep) += 2 * kMs;
    step.exchange_ns = 4 * kMs;
  };
  RunFolder folder;
  test::write_synthetic_run(folder.path(), plan);
  RunProfile profile = load_run(folder.path());
  const auto finding = [&](const char* id) {
    const Analysis analysis = analyze(profile);
    const auto found = std::ranges::find(analysis.findings, id, &Finding::id);
    return found == analysis.findings.end() ? Finding{} : *found;
  };
  EXPECT_EQ(finding("engine").id, "");
  const double exchange_s = finding("exchange").seconds;
  EXPECT_NEAR(exchange_s, 0.8, 0.08);

  profile.experiment["as_is"] = "exchange";
  const Finding exchange_alone = finding("engine");
  EXPECT_NEAR(exchange_alone.seconds, 0.4, 0.04);
  EXPECT_FALSE(exchange_alone.fault);
  EXPECT_THAT(exchange_alone.advice, HasSubstr("session = dtrain.init()"));
  EXPECT_NEAR(finding("exchange").seconds, exchange_s - 0.4, 0.04) << "no second counts twice";
  EXPECT_THAT(finding("exchange").advice, Not(HasSubstr("optimizations."))) << "they have no effect on scripts";

  profile.plan["model"] = {{"parameters", 700'000}, {"dtype", "float32"}};
  profile.plan["optimizer"] = {{"kind", "AdamW"}};
  EXPECT_NEAR(finding("engine").seconds, 0.4, 0.04) << "the memory's speed is not known";
  profile.plan["limits"]["node0"] = {{"threads", 1}, {"memory_gb_s", 49}};
  EXPECT_NEAR(finding("engine").seconds, 0.4 + 0.5, 0.05);
  profile.plan["optimizer"] = {{"kind", "Adafactor"}};
  EXPECT_NEAR(finding("engine").seconds, 0.4, 0.04) << "nothing is known of its update";
}

// Workers that read 5.2 ms for each batch, as said; the advice is for a program, or for an experiment with a model.
Finding slow_loader(const test::SyntheticReading& reading, bool model) {
  SyntheticRun plan;
  plan.loader_fetch_ns = 5'200'000;
  plan.reading = reading;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
  const Synthetic run(plan);
  RunProfile profile = run.profile;
  if (model) profile.experiment["model"] = "net.pt";
  return analyze(profile).findings.front();
}

TEST(Findings, ASlowLoaderSaysWhereItsTimeGoesAndWhichKeyHelps) {
  const Finding on_core = slow_loader({.cpu_ns = 5'000'000, .bytes = 1 << 20, .requests = 16}, true);
  EXPECT_EQ(on_core.cause, "slow_loader");
  EXPECT_THAT(on_core.evidence, HasSubstr("1 workers spend 96.2% of their time on a core, 0.0% ready without one, 3.8% "
                                          "waiting for storage"));
  EXPECT_THAT(on_core.advice, AllOf(HasSubstr("more loader workers (data.workers: auto"), HasSubstr("cores_per_slot")));
  EXPECT_THAT(slow_loader({.cpu_ns = 5'000'000}, false).advice, HasSubstr("(LoaderSettings::workers: auto"));

  const Finding no_core = slow_loader({.cpu_ns = 1'000'000, .no_core_ns = 4'000'000}, true);
  EXPECT_THAT(no_core.advice, HasSubstr("give the workers cores"));

  const Finding small = slow_loader({.cpu_ns = 200'000, .bytes = 320'000, .disk_bytes = 320'000, .requests = 32}, true);
  EXPECT_THAT(small.evidence, HasSubstr("in requests of 9.8 KiB each"));
  EXPECT_THAT(small.advice, AllOf(HasSubstr("small random reads"), HasSubstr("shards"),
                                  HasSubstr("(data.shuffle_window)"), HasSubstr("(data.workers)")));

  const Finding large =
      slow_loader({.cpu_ns = 200'000, .bytes = 64 << 20, .disk_bytes = 64 << 20, .requests = 32}, false);
  EXPECT_THAT(large.advice, AllOf(HasSubstr("more reads at once (LoaderSettings::workers)"),
                                  HasSubstr("(LoaderSettings::prefetch)"), HasSubstr("faster disk")));
}

// What the training loses by its waits alone would be less than what a run without the loader gains.
TEST(Findings, ALoaderThatSharesTheCoresOfTheTrainingCostsThatToo) {
  const auto loader = [](double wait_percent, double foreign_percent) {
    SyntheticRun plan;
    plan.loader_fetch_ns = 16'200'000;
    plan.reading = {.cpu_ns = 8'000'000, .no_core_ns = 8'000'000};
    plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
    plan.cpu_wait_percent = [=](int) { return wait_percent; };
    plan.foreign_percent = [=](int) { return foreign_percent; };
    return Synthetic(plan);
  };
  const Synthetic alone = loader(0, 0), shared = loader(50, 0), foreign = loader(50, 50);
  const Finding *const of_alone = alone.finding("loader"), *const of_shared = shared.finding("loader");
  ASSERT_NE(of_alone, nullptr);
  ASSERT_NE(of_shared, nullptr);
  const double taken_s = std::min(shared.analysis.waterfall.no_core_s.value_or(0), 200 * 0.008);
  ASSERT_GT(taken_s, of_alone->seconds);
  EXPECT_NEAR(of_shared->seconds, taken_s, 1e-9);
  EXPECT_THAT(of_shared->evidence, HasSubstr("the training was ready without a core for"));
  EXPECT_THAT(of_shared->advice, HasSubstr("give the workers cores"));
  // Other programs take the cores: that is a finding of its own.
  ASSERT_NE(foreign.finding("loader"), nullptr);
  EXPECT_NEAR(foreign.finding("loader")->seconds, of_alone->seconds, 1e-9);
}

TEST(Findings, ALoaderThatIsSlowOnOneRank) {
  SyntheticRun plan;
  plan.ranks = 4;
  plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
    if (rank == 3) phase(step, Phase::kDataloaderNext) += 5 * kMs;
  };
  const Synthetic run(plan);
  expect_first(run, "slow_loader", 3, 200 * 0.005);
  for (const Finding& finding : run.analysis.findings) EXPECT_NE(finding.id, "straggler") << "counted twice";
}

TEST(Findings, StallsAtRegularIntervals) {
  SyntheticRun plan;
  plan.steps = 500;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 && batch % 50 == 0) phase(step, Phase::kCallbacks) += 200 * kMs;
  };
  const Synthetic run(plan);
  expect_first(run, "periodic_stalls", 1, 10 * 0.2);
  EXPECT_THAT(run.analysis.findings.front().title, HasSubstr("every 50 batches"));
  EXPECT_THAT(run.analysis.findings.front().title, HasSubstr("callbacks"));
  for (const Finding& finding : run.analysis.findings) EXPECT_NE(finding.id, "straggler") << "counted twice";
}

TEST(Findings, StallsOfTheWholeRun) {
  SyntheticRun plan;
  plan.steps = 500;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 40 == 7) step.exchange_ns += 150 * kMs;
  };
  const Synthetic run(plan);
  expect_first(run, "periodic_stalls", -1, 13 * 0.15);
  EXPECT_THAT(run.analysis.findings.front().title, HasSubstr("in the exchange"));
}

TEST(Findings, AShardThatIsLargerThanTheOthers) {
  SyntheticRun plan;
  plan.ranks = 4;
  plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
    if (rank != 1) return;
    step.samples = 48;
    phase(step, Phase::kForward) = phase(step, Phase::kForward) * 3 / 2;
    phase(step, Phase::kBackward) = phase(step, Phase::kBackward) * 3 / 2;
  };
  // Balanced, each rank would have 36 samples: 9 ms x 36/32 instead of 9 ms x 48/32.
  expect_first(Synthetic(plan), "uneven_shard", 1, 200 * 0.009 * (48 - 36) / 32);
}

TEST(Findings, ARankWithDataLeftWhenTheOthersHaveNone) {
  SyntheticRun plan;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 || batch <= 100) return;
    step.samples = 0;
    phase(step, Phase::kForward) = phase(step, Phase::kBackward) = 0;
  };
  expect_first(Synthetic(plan), "uneven_shard", 1, 100 * 0.009 / 2);
}

TEST(Findings, ASlowLinkBetweenHosts) {
  SyntheticRun plan;
  plan.ranks_per_host = 1;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { step.exchange_ns = 20 * kMs; };
  const Synthetic run(plan);
  expect_first(run, "slow_link", -1, 200 * 0.020);
  EXPECT_EQ(run.analysis.stragglers.clock_error_ns, 20'000);
}

TEST(Findings, TheSameOnOneHostIsNoFault) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { step.exchange_ns = 20 * kMs; };
  const Synthetic run(plan);
  EXPECT_EQ(run.analysis.findings.front().cause, "exchange");
  EXPECT_FALSE(run.analysis.findings.front().fault);
}

TEST(Findings, AMemoryLeakInOneRankInBytesAStep) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.leak_bytes = [](int rank) { return rank == 1 ? 300'000.0 : 0.0; };
  const Synthetic run(plan);
  const Finding& first = run.analysis.findings.front();
  EXPECT_EQ(first.cause, "memory_leak") << findings_text(run.analysis);
  EXPECT_EQ(first.rank, 1);
  EXPECT_NEAR(first.bytes_per_step.value_or(0), 300'000, 30'000);
}

TEST(Findings, ALeakInAllRanksIsOneFinding) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.leak_bytes = [](int) { return 300'000.0; };
  const Synthetic run(plan);
  EXPECT_EQ(run.analysis.findings.front().rank, -1);
  EXPECT_EQ(std::count_if(run.analysis.findings.begin(), run.analysis.findings.end(),
                          [](const Finding& finding) { return finding.id == "memory_leak"; }),
            1);
}

TEST(Findings, MemoryThatIsFilledOnceIsNoLeak) {
  Synthetic healthy(SyntheticRun{.steps = 1'000});
  for (MonitorProfile& monitor : healthy.profile.monitors) {
    for (std::size_t i = 0; i < monitor.samples.size(); ++i) {
      // Up by 200 MB in the first half, then flat.
      const double filled =
          2e8 * std::min(1.0, 2.0 * static_cast<double>(i) / static_cast<double>(monitor.samples.size()));
      for (ProcessLine& process : monitor.samples[i].processes) process.resident_bytes += filled;
    }
  }
  for (const Finding& finding : analyze(healthy.profile).findings) EXPECT_NE(finding.id, "memory_leak");
}

TEST(Findings, TheLastCheckpointCannotBeTakenLessOften) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch == 150) phase(step, Phase::kCheckpoint) += 500 * kMs;
  };
  Synthetic run(plan);
  ASSERT_NE(run.finding("checkpoints"), nullptr);
  EXPECT_THAT(run.finding("checkpoints")->advice, HasSubstr("take them less often (min_checkpoint_period)"));
  const auto advice_with = [&](const char* reason) {
    run.folder.append("events.jsonl",
                      fmt::format(R"({{"time":"2026-03-01T12:00:01.000000Z","event":"checkpoint_saved",)"
                                  R"("step":150,"epoch":0,"bytes":8,"reason":"{}","copy_s":0.4}})"
                                  "\n",
                                  reason));
    run.profile = load_run(run.folder.path());
    run.analysis = analyze(run.profile);
    return run.finding("checkpoints")->advice;
  };
  EXPECT_THAT(advice_with("end"), Not(HasSubstr("less often")));
  EXPECT_THAT(advice_with("period"), HasSubstr("less often"));
}

TEST(Findings, LeakComesFirstThenTheDearest) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.leak_bytes = [](int rank) { return rank == 0 ? 300'000.0 : 0.0; };
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kDataloaderNext) += 5 * kMs;
    if (batch % 100 == 0) phase(step, Phase::kValidation) = 100 * kMs;
  };
  const Analysis analysis = Synthetic(plan).analysis;
  ASSERT_GE(analysis.findings.size(), 3u);
  EXPECT_EQ(analysis.findings[0].id, "memory_leak");
  EXPECT_EQ(analysis.findings[1].id, "loader");
  EXPECT_EQ(analysis.findings[2].id, "validation");
  EXPECT_FALSE(analysis.findings[2].fault);
  EXPECT_NEAR(analysis.findings[2].seconds, 1.0, 0.01);
}

TEST(Findings, FaultsAreFoundInWindowsAsWell) {
  SyntheticRun plan;
  plan.ranks = 3;
  plan.ranks_per_host = 3;
  plan.steps = 3'000;
  plan.detail_steps = 500;
  plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
    if (rank == 2) phase(step, Phase::kBackward) += 4 * kMs;
  };
  expect_first(Synthetic(plan), "slow_compute", 2, 3'000 * 0.004);
}

TEST(Findings, StallsAmongFoldedStepsAreFoundByTheirLines) {
  SyntheticRun plan;
  plan.steps = 4'000;
  plan.detail_steps = 500;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 200 == 0) phase(step, Phase::kOther) += 400 * kMs;
  };
  const Synthetic run(plan);
  EXPECT_GT(run.truth.outliers, 0);
  expect_first(run, "periodic_stalls", -1, 20 * 0.4);
}

// Rewrites a run's other files.
Analysis with_plan(const SyntheticRun& plan, const Json& more) {
  Synthetic run(plan);
  run.profile.plan.update(more);
  return analyze(run.profile);
}

TEST(LookAt, IsTheDearestFinding) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
  EXPECT_THAT(Synthetic(plan).analysis.summary.look_at, testing::StartsWith("the ranks wait 1.0"));
}

TEST(LookAt, CompressionThatLosesIsToBeSwitchedOff) {
  const Json lost = {{"compression", {{"kind", "powersgd"}, {"text", "said"}, {"gained_s", -1.0}}}};
  EXPECT_THAT(with_plan({}, lost).summary.look_at, HasSubstr("gradient_compression: false"));
  const Json gained = {{"compression", {{"kind", "powersgd"}, {"text", "said"}, {"gained_s", 1.0}}}};
  EXPECT_THAT(with_plan({}, gained).summary.look_at, Not(HasSubstr("gradient_compression: false")));
}

TEST(LookAt, BlamesNoRankWhereEachComesLastInTurn) {
  SyntheticRun plan;
  plan.noise = 0.3;
  EXPECT_THAT(Synthetic(plan).analysis.summary.look_at, HasSubstr("each in turn"));
}

TEST(LookAt, SaysSoWhenNothingStandsOut) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { step.exchange_ns = kMs / 10; };
  EXPECT_THAT(Synthetic(plan).analysis.summary.look_at, HasSubstr("nothing stands out: 8"));
}

}  // namespace
}  // namespace dtrain::analysis
