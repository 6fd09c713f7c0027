#include "dtrain/analysis/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "summary/summary_words.h"
#include "synthetic.h"
#include "trace_fixture.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;

double part(const Waterfall& waterfall, const std::string& name) {
  for (const WaterfallPart& one : waterfall.parts) {
    if (one.name == name) return one.seconds;
  }
  throw std::runtime_error("no part " + name);
}

void expect_whole(const Waterfall& waterfall) {
  double share = 0, seconds = 0;
  for (const WaterfallPart& one : waterfall.parts) {
    share += one.share;
    seconds += one.seconds;
    EXPECT_GE(one.seconds, -1e-9) << one.name;
  }
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_NEAR(seconds, waterfall.wall_s, 1e-9 * waterfall.wall_s);
}

TEST(Waterfall, SumsToTheWallTimeAndNamesWhereItWent) {
  SyntheticRun plan;
  plan.noise = 0;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kToDevice) = kMs;
    if (rank == 1) phase(step, Phase::kForward) += 2 * kMs;
    if (batch % 100 == 0) phase(step, Phase::kValidation) = 50 * kMs;
  };
  const Synthetic run(plan);
  const Waterfall& waterfall = run.analysis.waterfall;
  expect_whole(waterfall);
  EXPECT_NEAR(waterfall.wall_s, run.truth.loop_s, 1e-6);
  EXPECT_NEAR(part(waterfall, "compute"), 200 * 0.009, 1e-6);
  EXPECT_NEAR(part(waterfall, "slower_compute"), 200 * 0.002 / 2, 1e-6);
  EXPECT_NEAR(part(waterfall, "waiting"), 200 * 0.002 / 2, 1e-6);
  EXPECT_NEAR(part(waterfall, "exchange"), 200 * 0.0005, 1e-6);
  EXPECT_NEAR(part(waterfall, "loading"), 200 * 0.0002, 1e-6);
  EXPECT_NEAR(part(waterfall, "host_to_device"), 200 * 0.001, 1e-6);
  EXPECT_NEAR(part(waterfall, "optimizer"), 200 * 0.001, 1e-6);
  EXPECT_NEAR(part(waterfall, "validation"), 2 * 0.05, 1e-6);
  EXPECT_NEAR(part(waterfall, "other"), 200 * 0.0001, 1e-6);
  EXPECT_NEAR(part(waterfall, "unattributed"), 0, 1e-6);
  EXPECT_NEAR(waterfall.ideal_samples_per_s, 64 / 0.009, 1);
  EXPECT_NEAR(waterfall.efficiency, 0.009 * 200 / run.truth.loop_s, 1e-6);
}

TEST(Waterfall, SumsUpForLongRunsAndForOneRank) {
  SyntheticRun plan;
  plan.steps = 2'500;
  plan.detail_steps = 300;
  const Synthetic both(plan);
  expect_whole(both.analysis.waterfall);
  EXPECT_NEAR(part(both.analysis.waterfall, "exchange"), 2'500 * 0.0005, 0.05);
  plan.ranks = 1;
  const Synthetic one(plan);
  expect_whole(one.analysis.waterfall);
  EXPECT_EQ(part(one.analysis.waterfall, "waiting"), 0);
}

// Most steps are CUDA graphs, which have one time: what they hide is not known, and is not 0.
TEST(Waterfall, StepsThatAreCudaGraphsAreComputing) {
  SyntheticRun plan;
  plan.noise = 0;
  plan.change = [](int /*rank*/, std::int64_t batch, SyntheticStep& step) {
    if (batch <= 40) return;
    phase(step, Phase::kForward) = phase(step, Phase::kBackward) = phase(step, Phase::kOptimizerStep) = 0;
    phase(step, Phase::kGraph) = 8 * kMs;
    step.exchange_ns = 0;
  };
  for (const std::int64_t detail_steps : {10'000, 100}) {  // all steps in full; the rest in windows
    plan.detail_steps = detail_steps;
    const Synthetic run(plan);
    const Waterfall& waterfall = run.analysis.waterfall;
    expect_whole(waterfall);
    EXPECT_NEAR(part(waterfall, "compute") + part(waterfall, "slower_compute"), 40 * 0.009 + 160 * 0.008, 1e-6);
    EXPECT_NEAR(part(waterfall, "exchange"), 40 * 0.0005, 1e-6);
    EXPECT_NEAR(part(waterfall, "optimizer"), 40 * 0.001, 1e-6);
    const RunSummary& summary = run.analysis.summary;
    EXPECT_NEAR(summary.graphs_s, 160 * 0.008, 1e-6);
    EXPECT_NEAR(summary.ranks.front().compute_s, 40 * 0.009 + 160 * 0.008, 1e-6);
    EXPECT_EQ(exposed_text(summary).find("in CUDA graphs ("), 0u);
    EXPECT_NE(exposed_text(summary).find("the exposed communication is not known"), std::string::npos);
    for (const PhaseSummary& row : summary.phases) {
      if (row.name == "graph") {
        EXPECT_NEAR(row.seconds, 160 * 0.008, 1e-6);
      }
      if (row.name == "train_batch") {
        EXPECT_NEAR(row.seconds, 40 * 0.009, 1e-6);
      }
    }
    const WhatIf& what_if = run.analysis.what_if;
    EXPECT_TRUE(what_if.scaling.empty());
    for (const Prediction& one : what_if.changes) EXPECT_NE(one.name, "free_network");
    EXPECT_TRUE(std::any_of(what_if.notes.begin(), what_if.notes.end(), [](const std::string& note) {
      return note.find("what depends on the exchange is not predicted") != std::string::npos;
    }));
    const Finding* const exchange = run.finding("exchange");
    if (exchange != nullptr) {
      EXPECT_NEAR(exchange->seconds, 40 * 0.0005, 1e-6);
    }
    if (exchange != nullptr) {
      EXPECT_NE(exchange->evidence.find("40 exchanges held up"), std::string::npos);
    }
  }
}

TEST(Waterfall, WhatNoStepAccountsForIsSaid) {
  RunFolder folder;
  folder.append(folder.rank_dump(0), header_line(0, 1) + step_line(1, 0, 1, 2) + step_line(2, 30, 1, 2) +
                                         part_line("loop", 0, 100) + kFinished);
  const Waterfall waterfall = analyze(load_run(folder.path())).waterfall;
  expect_whole(waterfall);
  EXPECT_NEAR(part(waterfall, "unattributed"), 0.100 - 2 * 0.017, 1e-9);
}

TEST(Waterfall, ARankThatEndsEarlyWaitsForTheLast) {
  RunFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    folder.append(folder.rank_dump(rank),
                  header_line(rank, 2) + step_line(1, 0, 0, 0) + part_line("loop", 0, rank == 0 ? 14 : 20) + kFinished);
  }
  const Waterfall waterfall = analyze(load_run(folder.path())).waterfall;
  expect_whole(waterfall);
  EXPECT_EQ(part(waterfall, "waiting"), 0);
  EXPECT_NEAR(part(waterfall, "ended_early"), 0.003, 1e-9);
  EXPECT_NEAR(part(waterfall, "unattributed"), 0.003, 1e-9);
}

// Traces of both ranks: in two batches 200 kernels of 6 us that are launched one after the other, each in 10 us.
void trace_slow_launches(const RunFolder& folder) {
  std::vector<std::string> events;
  for (int i = 0; i < 200; ++i) {
    events.push_back(launch_of(i + 1, 10 * i, 9));
    events.push_back(kernel(10 * i + 10, 6, i + 1));
  }
  for (int rank = 0; rank < 2; ++rank) write_trace(folder, rank, 0, profile::TraceLog(), events);
}

TEST(Waterfall, TimeInWhichTheGpuWaitsForLaunchesIsAPartWhereTracesShowIt) {
  SyntheticRun plan;
  plan.noise = 0;
  const Synthetic run(plan);
  trace_slow_launches(run.folder);
  const Analysis analysis = analyze(run.profile);
  expect_whole(analysis.waterfall);
  const double gaps_s = 200 * 199 * 4e-6 / 2;  // 199 gaps of 4 us in two batches
  EXPECT_NEAR(part(analysis.waterfall, "launch_gaps"), gaps_s, 1e-9);
  EXPECT_NEAR(analysis.waterfall.part_s("compute"), 200 * 0.009, 1e-6);

  const auto change = std::ranges::find(analysis.what_if.changes, "cuda_graphs", &Prediction::name);
  ASSERT_NE(change, analysis.what_if.changes.end());
  EXPECT_NEAR(analysis.what_if.step_s - change->step_s, gaps_s / 200, 1e-6);
  EXPECT_EQ(change->set, "optimizations.cuda_graphs=true");
  const auto finding = std::ranges::find(analysis.findings, "launch_gaps", &Finding::id);
  ASSERT_NE(finding, analysis.findings.end());
  EXPECT_NE(finding->title.find("wait for launches of"), std::string::npos) << finding->title;
  EXPECT_NE(finding->title.find(seconds_text(6e-6)), std::string::npos) << finding->title;
  EXPECT_NE(finding->title.find(seconds_text(10e-6)), std::string::npos) << finding->title;
  EXPECT_NEAR(finding->seconds, gaps_s, 1e-9);
  EXPECT_EQ(finding->patch, std::vector<std::string>{"optimizations.cuda_graphs=true"});
  EXPECT_EQ(finding->advice.find("set optimizations.cuda_graphs: true: predicted 1.04x"), 0u) << finding->advice;
  EXPECT_FALSE(finding->fault);

  RunProfile tried = run.profile;
  tried.plan["cuda_graphs"] = {{"captured", false}, {"text", "steps run without a graph"}};
  const Analysis after = analyze(tried);
  EXPECT_EQ(std::ranges::find(after.what_if.changes, "cuda_graphs", &Prediction::name), after.what_if.changes.end());
  const auto still = std::ranges::find(after.findings, "launch_gaps", &Finding::id);
  ASSERT_NE(still, after.findings.end());
  EXPECT_TRUE(still->patch.empty());
}

TEST(Waterfall, LaunchGapsAreAtMostWhatABatchTakesBeyondItsKernels) {
  SyntheticRun plan;
  plan.noise = 0;
  plan.change = [](int /*rank*/, std::int64_t /*batch*/, SyntheticStep& step) {
    step = {};
    phase(step, Phase::kForward) = 700'000;  // ns; the kernels of a traced batch take 600 us
  };
  const Synthetic run(plan);
  trace_slow_launches(run.folder);  // which made launches slower
  const Waterfall waterfall = analyze(run.profile).waterfall;
  expect_whole(waterfall);
  EXPECT_NEAR(part(waterfall, "launch_gaps"), 200 * 100e-6, 1e-6);
}

TEST(Waterfall, TracedBatchesSayNothingOfCudaGraphs) {
  SyntheticRun plan;
  plan.change = [](int /*rank*/, std::int64_t batch, SyntheticStep& step) {
    if (batch <= 10) return;
    phase(step, Phase::kForward) = phase(step, Phase::kBackward) = 0;
    phase(step, Phase::kGraph) = 8 * kMs;
  };
  const Synthetic run(plan);
  trace_slow_launches(run.folder);
  const Analysis analysis = analyze(run.profile);
  expect_whole(analysis.waterfall);
  EXPECT_THROW(part(analysis.waterfall, "launch_gaps"), std::runtime_error);
  EXPECT_EQ(std::ranges::find(analysis.findings, "launch_gaps", &Finding::id), analysis.findings.end());
}

// The kernels of two observed batches of each rank: 4 ms of products, 2 ms of other kernels, 1 ms in which NCCL alone
// runs, 0.5 ms before 100 late launches.
void observe_kernels(const RunFolder& folder, bool as_graphs) {
  profile::GpuWindow window;
  window.batches = 2;
  window.works = 800;
  window.graphs = as_graphs ? 2 : 0;
  window.own_s = window.work_s = {8e-3, 4e-3, 2e-3, 0};
  window.busy_s = 14e-3;
  window.idle_s = window.launch_gaps_s = 1e-3;
  window.late_launches = 200;
  window.late_launch_s = 2e-3;
  window.work_before_s = 1e-3;
  for (int rank = 0; rank < 2; ++rank) {
    const profile::KernelTimes times{
        .rank = rank, .host = "node0", .first_batch = 50, .last_batch = 150, .cost_s = 0.01, .window = window};
    write_file_atomic(folder.path() / "profile" / profile::kernel_times_file_name(rank),
                      to_line(profile::to_json(times)));
  }
}

TEST(Waterfall, KernelsOfObservedBatchesAreParts) {
  SyntheticRun plan;
  plan.noise = 0;
  const Synthetic run(plan);  // 9 ms of computing, 1 ms of the update
  observe_kernels(run.folder, false);
  trace_slow_launches(run.folder);  // does not count beside them
  const Analysis analysis = analyze(load_run(run.folder.path()));
  const Waterfall& waterfall = analysis.waterfall;
  expect_whole(waterfall);
  EXPECT_NEAR(part(waterfall, "products"), 200 * 0.004, 1e-6);
  EXPECT_NEAR(part(waterfall, "memory_bound"), 200 * (0.002 - 0.001), 1e-6) << "without the update's";
  EXPECT_NEAR(part(waterfall, "launch_gaps"), 200 * 0.0005, 1e-6);
  EXPECT_NEAR(part(waterfall, "exchange"), 200 * 0.0005, 1e-6) << "as the phases have it";
  EXPECT_NEAR(waterfall.part_s("compute"), 200 * 0.009, 1e-6);
  EXPECT_EQ(to_json(analysis)["kernel_times"][1]["rank"], 1);
  const auto finding = std::ranges::find(analysis.findings, "launch_gaps", &Finding::id);
  ASSERT_NE(finding, analysis.findings.end());
  EXPECT_NE(finding->title.find(seconds_text(5e-6)), std::string::npos) << finding->title;
  EXPECT_EQ(finding->patch, std::vector<std::string>{"optimizations.cuda_graphs=true"});
}

TEST(Waterfall, KernelsOfCudaGraphsAreParts) {
  SyntheticRun plan;
  plan.noise = 0;
  plan.change = [](int /*rank*/, std::int64_t /*batch*/, SyntheticStep& step) {
    step = {};
    phase(step, Phase::kGraph) = 9 * kMs;
  };
  const Synthetic run(plan);
  observe_kernels(run.folder, true);
  const Waterfall waterfall = analyze(load_run(run.folder.path())).waterfall;
  expect_whole(waterfall);
  EXPECT_NEAR(part(waterfall, "products"), 200 * 0.004, 1e-6);
  EXPECT_NEAR(part(waterfall, "memory_bound"), 200 * 0.002, 1e-6);
  EXPECT_NEAR(part(waterfall, "exchange"), 200 * 0.001, 1e-6);
  EXPECT_NEAR(part(waterfall, "launch_gaps"), 200 * 0.0005, 1e-6);
  EXPECT_NEAR(part(waterfall, "compute"), 200 * 0.0015, 1e-6);
}

TEST(Waterfall, AnEmptyRunHasNone) {
  const RunFolder folder;
  EXPECT_TRUE(analyze(load_run(folder.path())).waterfall.parts.empty());
}

}  // namespace
}  // namespace dtrain::analysis
