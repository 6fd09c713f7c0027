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

const Prediction& prediction(const std::vector<Prediction>& all, const std::string& name) {
  for (const Prediction& one : all) {
    if (one.name == name) return one;
  }
  throw std::runtime_error("no prediction " + name);
}

double step_s(const SyntheticRun& plan) {
  return Synthetic(plan).analysis.what_if.step_s;
}

// Loading varies, so that ranks wait for each other's loaders; one rank is slower.
SyntheticRun base() {
  SyntheticRun plan;
  plan.ranks = 4;
  plan.steps = 300;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kDataloaderNext) = (batch * 7 + rank * 3) % 5 * kMs;
    if (rank == 2) phase(step, Phase::kBackward) += 2 * kMs;
  };
  return plan;
}

TEST(WhatIf, AFreeLoaderIsWhatTheSameRunWithoutLoadingTakes) {
  const SyntheticRun plan = base();
  SyntheticRun without = plan;
  without.change = [&](int rank, std::int64_t batch, SyntheticStep& step) {
    plan.change(rank, batch, step);
    phase(step, Phase::kDataloaderNext) = 0;
  };
  const WhatIf what_if = Synthetic(plan).analysis.what_if;
  const Prediction& free = prediction(what_if.changes, "free_loader");
  const double measured = step_s(without);
  EXPECT_NEAR(free.step_s, measured, 0.02 * measured);
  EXPECT_NEAR(free.step_p50_s, measured, 0.02 * measured);
  EXPECT_NEAR(free.gain, what_if.step_s / measured - 1, 0.02);
  EXPECT_NEAR(free.saved_s, 300 * (what_if.step_s - measured), 0.05);
  EXPECT_EQ(free.mock, "loader");
}

// One worker that takes 22 ms for a batch, while a step without waiting takes 10.8: four of them keep up.
TEST(WhatIf, MoreWorkersWhereTheExperimentSaysHowMany) {
  SyntheticRun plan;
  plan.noise = 0;
  plan.loader_fetch_ns = 22 * kMs;
  plan.reading = test::SyntheticReading{.cpu_ns = 20 * kMs};
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) = 12 * kMs; };
  const Synthetic run(plan);
  Json ranks;  // of the plan
  const auto changes = [&](const Json& workers) {
    RunProfile profile = run.profile;
    if (!ranks.is_null()) profile.plan["ranks"] = ranks;
    profile.experiment["model"] = "net.pt";
    profile.experiment["data"] = {{"format", "npy"}, {"workers", workers}};
    return analyze(profile).what_if.changes;
  };
  const Prediction more = prediction(changes(1), "loader_workers");
  EXPECT_EQ(more.set, "data.workers=3");
  EXPECT_NEAR(more.step_s, prediction(changes(1), "free_loader").step_s, 1e-4);
  // The workers need a core for 20 ms of a batch. With one that is free they get no faster than that; where the
  // training computes on both, it loses half of it.
  ranks = Json::array({{{"cpus", {0, 1}}, {"threads", 1}}, {{"cpus", {2, 3}}, {"threads", 1}}});
  const Prediction one_free = prediction(changes(1), "loader_workers");
  EXPECT_NEAR(one_free.step_s, 20e-3, 1e-3);
  EXPECT_THAT(one_free.assumption, ::testing::HasSubstr("1 of the rank's 2 are free for it"));
  for (Json& rank : ranks) rank["threads"] = 2;
  const Prediction none_free = prediction(changes(1), "loader_workers");
  EXPECT_NEAR(none_free.step_s, prediction(changes(1), "free_loader").step_s + 10e-3, 1e-3);
  EXPECT_THAT(none_free.assumption, ::testing::HasSubstr("the training computes on all 2 of the rank"));
  ranks = nullptr;
  // Auto has as many as help, and a program has no such key.
  EXPECT_THROW(prediction(changes("auto"), "loader_workers"), std::runtime_error);
  EXPECT_THROW(prediction(run.analysis.what_if.changes, "loader_workers"), std::runtime_error);
  // Where nothing waits, nothing is gained.
  SyntheticRun fast = plan;
  fast.change = {};
  const Synthetic quick(fast);
  RunProfile profile = quick.profile;
  profile.experiment["model"] = "net.pt";
  profile.experiment["data"] = {{"workers", 1}};
  for (const Prediction& one : analyze(profile).what_if.changes) {
    if (one.name == "loader_workers") {
      EXPECT_LT(one.gain, 0.03);
    }
  }
}

TEST(WhatIf, ValidationAndCheckpointsAreNoPartOfAStep) {
  const SyntheticRun plan = base();
  SyntheticRun paused = plan;
  paused.change = [&](int rank, std::int64_t batch, SyntheticStep& step) {
    plan.change(rank, batch, step);
    if (batch % 10 == 0) phase(step, Phase::kValidation) = phase(step, Phase::kCheckpoint) = 100 * kMs;
  };
  EXPECT_NEAR(step_s(paused), step_s(plan), 1e-9);
}

TEST(WhatIf, AFreeNetworkIsTheSlowestRankAlone) {
  const WhatIf what_if = Synthetic(base()).analysis.what_if;
  // Rank 2: 2 ms of loading on average, 11 of computing, 1.1 of the rest.
  EXPECT_NEAR(prediction(what_if.changes, "free_network").step_s, 0.0141, 0.0002);
  EXPECT_NEAR(prediction(what_if.changes, "compute_alone").step_s, 0.0121, 0.0002);
  EXPECT_EQ(prediction(what_if.changes, "free_network").mock, "comm");
  EXPECT_EQ(prediction(what_if.changes, "compute_alone").mock, "loader,comm");
}

// Four ranks: their part of an update takes 1 ms where they share the memory, 0.4 ms elsewhere.
TEST(WhatIf, ASharedCopyCostsWhatAQuarterOfAReplicatedUpdateDoesNot) {
  SyntheticRun plan = base();
  plan.change = [before = plan.change](int rank, std::int64_t batch, SyntheticStep& step) {
    before(rank, batch, step);
    const bool replicated = batch <= 7 || (batch >= 13 && batch <= 17);
    phase(step, Phase::kOptimizerStep) = replicated ? 1600 * kMs / 1000 : kMs;
  };
  Synthetic run(plan);
  const auto turn = [](const char* strategy, int first, int last) {
    return Json{{"strategy", strategy}, {"first_batch", first}, {"last_batch", last}};
  };
  Json strategy{{"strategy", "sharded"}, {"one_copy", true}};
  const auto free_network_s = [&](const RunProfile& profile, const RunProfile& tried) {
    AnalyzeOptions options;
    options.tried = &tried;
    return prediction(analyze(profile, options).what_if.changes, "free_network").step_p50_s;
  };
  run.profile.plan["strategy"] = strategy;
  const RunProfile untold = run.profile;
  const WhatIf unknown = analyze(untold).what_if;
  EXPECT_EQ(std::count_if(unknown.notes.begin(), unknown.notes.end(),
                          [](const std::string& note) { return note.find("one copy") != std::string::npos; }),
            1);
  const double before = free_network_s(untold, untold);

  strategy["turns"] = {turn("replicated", 4, 7), turn("sharded", 9, 12), turn("replicated", 14, 17),
                       turn("sharded", 19, 22)};
  run.profile.plan["strategy"] = strategy;
  EXPECT_NEAR(free_network_s(run.profile, run.profile), before - 0.0006, 0.00001);
  EXPECT_NEAR(free_network_s(untold, run.profile), before - 0.0006, 0.00001);  // what a short run of it is told
  EXPECT_EQ(prediction(analyze(run.profile).what_if.changes, "free_loader").step_p50_s,
            prediction(unknown.changes, "free_loader").step_p50_s);

  RunProfile mock = run.profile;
  mock.plan["mock"] = {{"what", "comm"}, {"text", "mock run (comm)"}};
  const WhatIf of_mock = analyze(mock).what_if;
  EXPECT_FALSE(of_mock.changes.empty());
  for (const Prediction& one : of_mock.changes) {  // there is no exchange to make faster
    EXPECT_TRUE(one.name == "free_loader" || one.name == "loader_alone") << one.name;
  }
  EXPECT_TRUE(of_mock.scaling.empty());
  mock.plan["mock"]["what"] = "loader";
  for (const Prediction& one : analyze(mock).what_if.changes) {
    EXPECT_FALSE(one.name == "free_loader" || one.name == "compute_alone") << one.name;
  }

  strategy["strategy"] = "replicated";
  run.profile.plan["strategy"] = strategy;
  EXPECT_EQ(free_network_s(run.profile, run.profile), before);
  // Without a replicated turn nothing is known; where one takes longer than all parts together, nothing is added.
  strategy["strategy"] = "sharded";
  strategy["turns"] = {turn("sharded", 9, 12)};
  run.profile.plan["strategy"] = strategy;
  EXPECT_EQ(free_network_s(run.profile, run.profile), before);
  for (RankProfile& rank : run.profile.ranks) {
    for (StepLine& step : rank.steps) {
      if (step.batch > 7) continue;
      step.phases[static_cast<std::size_t>(Phase::kOptimizerStep)] += 5 * kMs;
      step.wall_ns += 5 * kMs;
    }
  }
  strategy["turns"] = {turn("replicated", 4, 7)};
  run.profile.plan["strategy"] = strategy;
  EXPECT_NEAR(free_network_s(run.profile, run.profile), before, 0.00002);
}

TEST(WhatIf, AMockRunsStepIsThatOfItsSlowestRank) {
  SyntheticRun plan = base();
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 2) phase(step, Phase::kBackward) += 2 * kMs;
    if (batch % 7 == 0) phase(step, Phase::kValidation) = phase(step, Phase::kCheckpoint) = 100 * kMs;
  };
  const Synthetic run(plan);
  double slowest = 0;
  for (const StepLine& step : run.profile.ranks[2].steps) {
    const double pauses_s = step.batch % 7 == 0 ? 0.2 : 0;
    slowest = std::max(slowest, static_cast<double>(step.wall_ns) / 1e9 - pauses_s);
  }
  EXPECT_NEAR(slowest_rank_step_s(run.profile), slowest, 0.02 * slowest);
  EXPECT_EQ(slowest_rank_step_s(RunProfile()), 0);
  // Of 4 and 8 ms, exchanged every second batch.
  RunProfile aggregated;
  aggregated.ranks.emplace_back();
  for (int batch = 1; batch <= 10; ++batch) {
    StepLine& step = aggregated.ranks[0].steps.emplace_back();
    step.batch = batch;
    step.exchanged = batch % 2 == 0;
    step.wall_ns = (step.exchanged ? 8 : 4) * kMs;
  }
  EXPECT_NEAR(slowest_rank_step_s(aggregated), 0.006, 1e-9);
  EXPECT_FALSE(foreign_load_percent(RunProfile()));
}

TEST(WhatIf, BalancedRanksTakeTheMean) {
  const WhatIf what_if = Synthetic(base()).analysis.what_if;
  // 2 + 9.5 + 1.1 of own work, 0.5 of exchange.
  EXPECT_NEAR(prediction(what_if.changes, "balanced").step_s, 0.0131, 0.0002);
}

TEST(WhatIf, LoadingAloneIsWhatTheWorkersTake) {
  SyntheticRun plan = base();
  plan.loader_fetch_ns = 3 * kMs;
  const WhatIf what_if = Synthetic(plan).analysis.what_if;
  EXPECT_NEAR(prediction(what_if.changes, "loader_alone").step_s, 0.0031, 0.0001);
  EXPECT_EQ(prediction(what_if.changes, "loader_alone").mock, "train");
}

TEST(WhatIf, TheLinkCountsAsFarAsItIsExposed) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { step.exchange_ns = 4 * kMs; };
  const WhatIf what_if = Synthetic(plan).analysis.what_if;
  EXPECT_NEAR(prediction(what_if.changes, "twice_the_link").step_s, what_if.step_s - 0.002, 0.0002);
  EXPECT_NEAR(prediction(what_if.changes, "half_the_bytes").step_s, what_if.step_s - 0.002, 0.0002);
  // Every second step without its exchange (4 ms) and its update (1 ms).
  EXPECT_NEAR(prediction(what_if.changes, "aggregate_2").step_s, what_if.step_s - 0.0025, 0.0003);
  EXPECT_LT(prediction(what_if.changes, "aggregate_4").step_s, prediction(what_if.changes, "aggregate_2").step_s);
}

TEST(WhatIf, ChangesComeBestFirst) {
  const WhatIf what_if = Synthetic(base()).analysis.what_if;
  EXPECT_EQ(what_if.changes.back().name, "loader_alone");
  for (std::size_t i = 1; i + 1 < what_if.changes.size(); ++i) {
    EXPECT_GE(what_if.changes[i - 1].gain, what_if.changes[i].gain);
  }
}

TEST(WhatIf, MoreRanksAreNearlyAsEfficientAsTheyTurnOut) {
  SyntheticRun plan;
  plan.ranks = 2;
  plan.noise = 0.1;
  plan.steps = 500;
  const WhatIf what_if = Synthetic(plan).analysis.what_if;
  SyntheticRun larger = plan;
  larger.ranks = 16;
  const double measured = step_s(larger);
  const Prediction& predicted = prediction(what_if.scaling, "ranks_16");
  EXPECT_NEAR(predicted.step_s, measured, 0.1 * measured);
  EXPECT_EQ(predicted.world_size, 16);
  EXPECT_LT(*predicted.efficiency, 1);
  EXPECT_NEAR(predicted.samples_per_s, 16 * 32 / predicted.step_s, 1);
}

TEST(WhatIf, FoldedStepsPredictTheSame) {
  SyntheticRun plan = base();
  plan.steps = 2'000;
  const double whole = prediction(Synthetic(plan).analysis.what_if.changes, "free_loader").step_s;
  plan.detail_steps = 500;
  EXPECT_NEAR(prediction(Synthetic(plan).analysis.what_if.changes, "free_loader").step_s, whole, 0.06 * whole);
}

TEST(WhatIf, SaysWhatItCannotPredict) {
  SyntheticRun plan;
  plan.ranks = 1;
  const WhatIf one = Synthetic(plan).analysis.what_if;
  EXPECT_TRUE(one.scaling.empty());
  EXPECT_FALSE(one.notes.empty());
  const RunFolder empty;
  EXPECT_FALSE(analyze(load_run(empty.path())).what_if.notes.empty());
}

}  // namespace
}  // namespace dtrain::analysis
