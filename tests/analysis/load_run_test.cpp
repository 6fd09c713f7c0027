#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "measure/contention.h"
#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;
using testing::Contains;
using testing::HasSubstr;

TEST(LoadRun, TotalsAreTheSameWhetherStepsAreFoldedOrNot) {
  SyntheticRun plan;
  plan.ranks = 3;
  plan.steps = 1'500;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 && batch % 400 == 0) phase(step, Phase::kOther) = 100 * kMs;  // outliers
  };
  const Synthetic whole(plan);
  plan.detail_steps = 700;
  const Synthetic folded(plan);
  EXPECT_GT(folded.truth.outliers, 0);
  EXPECT_LT(folded.truth.bytes, whole.truth.bytes);
  for (std::size_t r = 0; r < 3; ++r) {
    const RankProfile& a = whole.profile.ranks[r];
    const RankProfile& b = folded.profile.ranks[r];
    EXPECT_TRUE(a.windows.empty());
    EXPECT_EQ(b.windows.size(), 8u);
    EXPECT_EQ(a.step_count(), 1'500);
    EXPECT_EQ(b.step_count(), 1'500);
    EXPECT_EQ(a.counts().samples, b.counts().samples);
    EXPECT_EQ(a.wall_ns(), b.wall_ns());
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      EXPECT_EQ(a.phase_ns(static_cast<Phase>(i)), b.phase_ns(static_cast<Phase>(i)));
    }
    EXPECT_NEAR(static_cast<double>(b.phase_ns(Phase::kAllreduceWait)) / 1e9, folded.truth.wait_s[r], 1e-6);
  }
  const RunSummary& a = whole.analysis.summary;
  const RunSummary& b = folded.analysis.summary;
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_DOUBLE_EQ(a.samples_per_s, b.samples_per_s);
  EXPECT_NEAR(a.step_p50_s, b.step_p50_s, 0.011 * a.step_p50_s);
  ASSERT_EQ(a.collectives.size(), b.collectives.size());
  EXPECT_EQ(a.collectives[0].count, b.collectives[0].count);
  EXPECT_EQ(a.collectives[0].bytes, b.collectives[0].bytes);
  EXPECT_NEAR(a.collectives[0].exposed_s, b.collectives[0].exposed_s, 1e-9);
  EXPECT_EQ(a.ranks[1].loader_records, b.ranks[1].loader_records);
}

TEST(LoadRun, WhatCannotBeReadIsAWarningWithItsLine) {
  RunFolder folder;
  folder.append(folder.rank_dump(0), header_line(0, 1) + kFinished);
  folder.append("plan.json", R"({"name":"n","world_size":"1","experiment":{"searcher":[]}})");
  folder.append("events.jsonl", "{\"event\":\"run_started\",\"pid\":\"x\"}\n[1]\n{\"event\"\n{\"event\":}\n");
  folder.append("metrics.jsonl", "{\"kind\":\"training\",\"metrics\":{\"loss\":1},\"batch\":true}\n");
  const RunProfile run = load_run(folder.path());
  EXPECT_THAT(run.warnings,
              testing::ElementsAre(R"(plan.json: "world_size" is a text, not a whole number)",
                                   R"(plan.json: "experiment.searcher" is a list, not an object)",
                                   R"(events.jsonl:1: "pid" is a text, not a whole number)",
                                   "events.jsonl:2: no object, which each line is",
                                   testing::StartsWith("events.jsonl:4: not valid JSON at byte 10: "),
                                   R"(metrics.jsonl:1: "batch" is true or false, not a whole number)",
                                   "the dump of the monitor of a is missing: no system metrics of its host"))
      << "a line that its writer did not complete is no damage";
  EXPECT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.metrics.size(), 1u);
  EXPECT_EQ(run.name, "n");
}

TEST(LoadRun, ReadsWhatARecordHasBesideTheSteps) {
  RunFolder folder;
  folder.append(folder.rank_dump(0), header_line(0, 2) + kFinished);
  folder.append(
      folder.rank_dump(1),
      R"({"record":"header","schema":1,"kind":"rank","rank":1,"world_size":2,"host":"b","agent":"b","cpus":[2,3],)"
      R"("rank_0_clock":{"time_ns":0,"offset_ns":1000,"error_ns":50}})"
      "\n"
      R"({"record":"clock","time_ns":100,"offset_ns":1200,"error_ns":40,"round_trips":9})"
      "\n"
      R"({"record":"memory","time_ns":5,"batch":3,"resident_memory":70,"peak_memory":90,"anonymous_memory":60})"
      "\n"
      R"({"record":"memory","time_ns":6,"batch":4,"resident_memory":70,"peak_memory":90,"anonymous_memory":60,"free_heap_memory":7})"
      "\n"
      R"({"record":"loader","batch":1,"time_ns":9,"queue_depth":2,"workers":1,"fetch_ns":77,"pinned":true})"
      "\n"
      R"({"record":"loader","batch":2,"time_ns":9,"queue_depth":2,"workers":1})"
      "\n");
  const RunProfile run = load_run(folder.path());
  const RankProfile& rank = *run.find_rank(1);
  EXPECT_EQ(rank.cpus, (std::vector<int>{2, 3}));
  ASSERT_EQ(rank.clocks.size(), 2u);
  EXPECT_EQ(run.to_common_ns(1, -10), 990);
  EXPECT_EQ(run.to_common_ns(1, 50), 50 + 1'100);
  EXPECT_EQ(run.to_common_ns(1, 200), 1'400);
  EXPECT_EQ(run.to_common_ns(0, 200), 200);
  EXPECT_EQ(run.clock_error_ns(), 50);
  ASSERT_EQ(rank.memory.size(), 2u);
  EXPECT_EQ(rank.memory[0].free_heap_bytes, -1);
  EXPECT_EQ(rank.memory[1].free_heap_bytes, 7);
  EXPECT_EQ(rank.memory[0].anonymous_bytes, 60);
  EXPECT_EQ(rank.memory[0].peak_bytes, 90);
  EXPECT_EQ(rank.loader[0].fetch_ns, 77);
  EXPECT_EQ(rank.loader[0].pinned, 1);
  EXPECT_EQ(rank.loader[1].fetch_ns, -1);
  EXPECT_EQ(rank.loader[1].pinned, -1);
  EXPECT_THAT(run.warnings, Contains(HasSubstr("rank 1 has no end record")));
}

TEST(LoadRun, ADamagedPlanIsAWarning) {
  RunFolder folder;
  folder.append("plan.json", "{");
  EXPECT_THAT(load_run(folder.path()).warnings, Contains(HasSubstr("plan.json")));
}

TEST(Contention, IsLoadOfOthersOnTheCoresOfARankWithinItsLoop) {
  SyntheticRun plan;
  plan.foreign_percent = [](int rank) { return rank == 1 ? 30.0 : 0.0; };
  plan.cpu_wait_percent = [](int rank) { return rank == 1 ? 20.0 : 1.0; };
  const Synthetic run(plan);
  const auto contention = find_contention(run.profile);
  ASSERT_TRUE(contention[1].foreign_percent && contention[1].wait_percent);
  EXPECT_NEAR(*contention[1].foreign_percent, 30, 0.1);
  EXPECT_NEAR(*contention[1].wait_percent, 20, 0.1);
  EXPECT_NEAR(contention[1].wait_s, 0.2 * run.truth.loop_s, 0.01);
  EXPECT_NEAR(*contention[0].foreign_percent, 0, 0.1);
  EXPECT_LT(contention[0].samples, static_cast<int>(run.profile.monitors[0].samples.size()))
      << "one is before the loop";
}

}  // namespace
}  // namespace dtrain::analysis
