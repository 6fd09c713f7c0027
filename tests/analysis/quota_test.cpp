// Runs that a CPU quota or the memory limit of a cgroup holds up, and causes that cannot exist, in dumps of runs that
// never were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Half of each period of 100 ms the kernel stops the rank: every fifth step of 10 ms takes 50 ms longer.
SyntheticRun quota_plan(int ranks = 1) {
  SyntheticRun plan;
  plan.ranks = ranks;
  plan.ranks_per_host = ranks;
  plan.steps = 400;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 5 == 0) phase(step, Phase::kBackward) += 50 * kMs;
  };
  plan.cpu_wait_percent = [](int) { return 49.0; };
  // A neighbour that computes while the quota leaves the core idle.
  plan.foreign_percent = [](int) { return 50.0; };
  return plan;
}

// As if the agents had sampled this of a quota.
Analysis under_quota(const SyntheticRun& plan, double periods_percent, double time_percent) {
  Synthetic run(plan);
  for (MonitorProfile& monitor : run.profile.monitors) {
    monitor.header["machine"]["cpu_quota"] = {{"cpus", 0.5}, {"group", "/docker/1f"}, {"period_ns", 100'000'000}};
    for (SystemLine& sample : monitor.samples) {
      sample.metrics.emplace_back("cpu_throttled_periods", periods_percent);
      sample.metrics.emplace_back("cpu_throttled_time", time_percent);
    }
  }
  return analyze(run.profile);
}

const Finding* find_finding(const Analysis& analysis, const std::string& id) {
  for (const Finding& one : analysis.findings) {
    if (one.id == id) return &one;
  }
  return nullptr;
}

std::int64_t triggered(const Analysis& analysis, const std::string& name) {
  for (const Finding& rule : analysis.rules) {
    if (rule.id == name) return rule.triggered;
  }
  return -1;
}

TEST(Quota, ItIsTheFindingAndNotTheStallsAndNeighboursThatItLooksLike) {
  const Analysis without = Synthetic(quota_plan()).analysis;
  EXPECT_NE(find_finding(without, "stalls"), nullptr) << "what it looks like";
  EXPECT_NE(find_finding(without, "contention"), nullptr);

  const Analysis analysis = under_quota(quota_plan(), 97, 50);
  ASSERT_FALSE(analysis.findings.empty());
  const Finding& first = analysis.findings.front();
  EXPECT_EQ(first.id, "cpu_quota") << findings_text(analysis);
  EXPECT_TRUE(first.fault);
  EXPECT_NEAR(first.share, 0.49, 0.02);
  EXPECT_THAT(first.title, HasSubstr("the CPU quota of the cgroup /docker/1f stops the ranks for "));
  EXPECT_THAT(first.evidence, AllOf(HasSubstr("used up in 97% of its periods"), HasSubstr("0.5 CPUs' worth")));
  EXPECT_THAT(first.advice, AllOf(HasSubstr("raise the quota"), Not(HasSubstr("fewer ranks"))));
  EXPECT_THAT(analysis.summary.look_at, HasSubstr("the CPU quota"));
  EXPECT_EQ(find_finding(analysis, "stalls"), nullptr) << findings_text(analysis);
  EXPECT_EQ(find_finding(analysis, "contention"), nullptr) << findings_text(analysis);
  EXPECT_EQ(triggered(analysis, "CPUQuota"), 1);
  EXPECT_EQ(triggered(analysis, "CPUOversubscription"), 0) << "no other thread had the core";
}

TEST(Quota, RanksThatWaitForEachOtherInTurnAreNotBlamed) {
  SyntheticRun plan = quota_plan(2);
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (batch % 4 == 2 * rank) phase(step, Phase::kBackward) += 20 * kMs;
  };
  EXPECT_NE(find_finding(Synthetic(plan).analysis, "turns"), nullptr) << "what it looks like";
  const Analysis analysis = under_quota(plan, 80, 100);
  EXPECT_EQ(analysis.findings.front().id, "cpu_quota") << findings_text(analysis);
  EXPECT_THAT(analysis.findings.front().advice, HasSubstr("fewer ranks"));
  for (const char* id : {"turns", "straggler", "stalls", "contention", "division"}) {
    EXPECT_EQ(find_finding(analysis, id), nullptr) << findings_text(analysis);
  }
}

TEST(Quota, OneThatIsNotUsedUpExplainsNothing) {
  const Analysis analysis = under_quota(quota_plan(), 0, 0);
  EXPECT_EQ(find_finding(analysis, "cpu_quota"), nullptr);
  EXPECT_NE(find_finding(analysis, "stalls"), nullptr) << findings_text(analysis);
  EXPECT_NE(find_finding(analysis, "contention"), nullptr);
}

TEST(Quota, StallsThatLastLongerThanItsPeriodsAreNotItsDoing) {
  SyntheticRun plan = quota_plan();
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 50 == 0) phase(step, Phase::kCallbacks) += 400 * kMs;
  };
  const Analysis analysis = under_quota(plan, 97, 50);
  ASSERT_NE(find_finding(analysis, "stalls"), nullptr) << findings_text(analysis);
  EXPECT_THAT(find_finding(analysis, "stalls")->title, HasSubstr("callbacks"));
}

TEST(MemoryLimit, ALeakLastsAsLongAsTheFullerOfHostAndCgroupAllowsAllRanks) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.leak_bytes = [](int) { return 300'000.0; };
  const auto evidence = [&](bool limited) {
    Synthetic run(plan);
    for (MonitorProfile& monitor : run.profile.monitors) {
      if (limited) monitor.header["machine"]["memory_limits"] = {{{"bytes", 1e9}, {"group", "/box"}}};
      for (SystemLine& sample : monitor.samples) {
        if (!limited) continue;
        sample.metrics.emplace_back("cgroup_free_memory", 60e6);
        sample.metrics.emplace_back("cgroup_memory_limit", 1e9);
      }
    }
    return analyze(run.profile).findings.front().evidence;
  };
  // 600 kB a step of both ranks; the host has 8 GB left.
  EXPECT_THAT(evidence(false),
              testing::ContainsRegex("the 7.5 GiB that its host has left last for 13,[0-9]+ more steps"));
  EXPECT_THAT(evidence(true), testing::ContainsRegex("the 57.2 MiB that the limit of the cgroup /box has left last for "
                                                     "(9[0-9]|1[01][0-9]) more steps"));
}

// Rank 1 comes to the exchange 4 ms after the others, which nothing in its phases explains.
Analysis late_to_exchanges(int ranks_per_host) {
  SyntheticRun plan;
  plan.ranks_per_host = ranks_per_host;
  Synthetic run(plan);
  for (RankProfile& rank : run.profile.ranks) {
    for (StepLine& step : rank.steps) {
      if (rank.rank == 1) continue;
      step.wall_ns += 4 * kMs;
      step.phases[static_cast<std::size_t>(Phase::kAllreduceWait)] += 4 * kMs;
    }
  }
  return analyze(run.profile);
}

TEST(CausesThatCannotExist, ALinkBetweenRanksOfOneHost) {
  EXPECT_THAT(findings_text(late_to_exchanges(1)), HasSubstr("look at its host's link"));
  const Analysis here = late_to_exchanges(2);
  ASSERT_FALSE(here.findings.empty());
  EXPECT_EQ(here.findings.front().id, "straggler") << findings_text(here);
  EXPECT_FALSE(here.findings.front().fault);
  EXPECT_THAT(findings_text(here), Not(HasSubstr("link")));
  EXPECT_THAT(here.stragglers.ranks.front().evidence, HasSubstr("passes in exchanges within the host"));
}

TEST(CausesThatCannotExist, StallsOfALinkOnOneHost) {
  SyntheticRun plan;
  plan.steps = 500;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 40 == 7) step.exchange_ns += 150 * kMs;
  };
  EXPECT_THAT(Synthetic(plan).analysis.findings.front().advice, Not(HasSubstr("link")));
  plan.ranks_per_host = 1;
  EXPECT_THAT(Synthetic(plan).analysis.findings.front().advice, HasSubstr("look at the link"));
}

TEST(CausesThatCannotExist, ADiskFromWhichNothingWasRead) {
  SyntheticRun plan;
  plan.loader_fetch_ns = 5'200'000;
  plan.reading = test::SyntheticReading{.cpu_ns = 200'000};
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kDataloaderNext) += 5 * kMs; };
  const Finding first = Synthetic(plan).analysis.findings.front();
  EXPECT_EQ(first.cause, "slow_loader");
  EXPECT_THAT(first.advice, AllOf(HasSubstr("no disk gave them anything"), Not(HasSubstr("faster disk"))));
}

TEST(CausesThatCannotExist, ProgramsOutsideTheRunThatAreItsOwnLoadersProcesses) {
  Synthetic run(quota_plan());
  EXPECT_NE(run.finding("contention"), nullptr);
  for (MonitorProfile& monitor : run.profile.monitors) {
    for (SystemLine& sample : monitor.samples) {
      for (ProcessLine& process : sample.processes) process.children_cpu_percent = 50;
    }
  }
  EXPECT_EQ(find_finding(analyze(run.profile), "contention"), nullptr);
}

TEST(CausesThatCannotExist, ADeviceOfARunOnProcessors) {
  SyntheticRun plan;
  plan.change = [](int, std::int64_t, SyntheticStep& step) { phase(step, Phase::kToDevice) += 5 * kMs; };
  EXPECT_THAT(findings_text(Synthetic(plan).analysis),
              AllOf(HasSubstr("bringing batches into the model's form"), Not(HasSubstr("on the device"))));
}

}  // namespace
}  // namespace dtrain::analysis
