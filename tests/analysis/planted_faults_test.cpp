// What real runs with planted faults taught (`make bench-faults`), in dumps of runs that never were: faults that come
// and go, machines whose speed varies, ranks that slow each other down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "synthetic.h"

namespace dtrain::analysis {
namespace {

using profile::Phase;
using test::SyntheticRun;
using test::SyntheticStep;
using testing::HasSubstr;

void expect_first_finding(const Analysis& analysis, const char* cause, int rank, double seconds) {
  ASSERT_FALSE(analysis.findings.empty());
  const Finding& first = analysis.findings.front();
  EXPECT_EQ(first.cause, cause) << findings_text(analysis);
  EXPECT_EQ(first.rank, rank) << findings_text(analysis);
  EXPECT_NEAR(first.seconds, seconds, 0.1 * seconds) << findings_text(analysis);
  EXPECT_TRUE(first.fault) << findings_text(analysis);
}

TEST(PlantedFaults, PeriodicStallsAmongOthersAreFoundWithTheirOwnCost) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 && batch % 40 == 0) phase(step, Phase::kForward) += 120 * kMs;
    // At no regular intervals, on either rank.
    const std::uint64_t noise = static_cast<std::uint64_t>(batch) * 0x9e3779b97f4a7c15u >> 40;
    if (noise % 50 == 0 && batch % 40 != 0 && rank == static_cast<int>(noise / 50 % 2)) {
      phase(step, Phase::kBackward) += 50 * kMs;
    }
  };
  const Synthetic run(plan);
  expect_first_finding(run.analysis, "periodic_stalls", 1, 25 * 0.12);
  EXPECT_THAT(run.analysis.findings.front().title, HasSubstr("every 40 batches"));
  EXPECT_THAT(run.analysis.findings.front().evidence, HasSubstr("at no regular intervals, are not counted"));
}

TEST(PlantedFaults, ALinkThatIsSlowForAWhileDoesNotStall) {
  SyntheticRun plan;
  plan.ranks_per_host = 1;
  plan.steps = 600;
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch % 300 > 250) step.exchange_ns = 40 * kMs;
  };
  const Synthetic run(plan);
  // And what the exchange takes otherwise.
  expect_first_finding(run.analysis, "slow_link", -1, 98 * 0.040 + 502 * 0.0005);
  EXPECT_EQ(run.finding("stalls"), nullptr) << findings_text(run.analysis);
}

TEST(PlantedFaults, ALinkThatCarriesWhatItCanIsNotSlow) {
  for (const double bits_per_s : {1e9, 1e12}) {
    SyntheticRun plan;
    plan.ranks_per_host = 1;
    plan.change = [](int, std::int64_t, SyntheticStep& step) { step.exchange_ns = 20 * kMs; };
    Synthetic run(plan);
    for (MonitorProfile& monitor : run.profile.monitors) {
      monitor.header["machine"] = {{"interfaces", {{{"name", "eth0"}, {"bits_per_s", bits_per_s}}}}};
    }
    const Analysis analysis = analyze(run.profile);
    const Finding& first = analysis.findings.front();
    EXPECT_EQ(first.id, "exchange") << findings_text(analysis);
    EXPECT_EQ(first.fault, bits_per_s > 1e10) << findings_text(analysis);
    EXPECT_EQ(first.cause, bits_per_s > 1e10 ? "slow_link" : "exchange");
  }
}

// Shares of 48 and 16 samples; each batch takes 1 ms, and a sample 0.25 ms, or 0.2 ms while the other rank waits.
TEST(PlantedFaults, AnUnevenShardWhereRanksSlowEachOtherDown) {
  SyntheticRun plan;
  plan.steps = 400;
  plan.change = [](int rank, std::int64_t, SyntheticStep& step) {
    step.samples = rank == 1 ? 48 : 16;
    phase(step, Phase::kForward) = kMs;
    phase(step, Phase::kBackward) = rank == 1 ? 16 * kMs / 4 + 32 * kMs / 5 : 16 * kMs / 4;
  };
  const Analysis analysis = Synthetic(plan).analysis;
  ASSERT_FALSE(analysis.findings.empty());
  const Finding& first = analysis.findings.front();
  EXPECT_EQ(first.cause, "uneven_shard") << findings_text(analysis);
  EXPECT_EQ(first.rank, 1);
  const double balanced_s = 0.001 + 32 * 0.00025;
  const double seconds = 400 * (0.001 + 0.0104 - balanced_s);
  EXPECT_NEAR(first.seconds, seconds, 0.2 * seconds) << findings_text(analysis);
}

// Shares of 48 and 16 samples in half of the steps; each batch takes 5 ms beside its samples, and ranks that compute at
// once slow each other down: nothing but the even steps can tell what those would take.
TEST(PlantedFaults, AnUnevenShardInPartOfTheStepsIsMeasuredByTheOthers) {
  SyntheticRun plan;
  plan.steps = 400;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kForward) = 5 * kMs;
    phase(step, Phase::kBackward) = 8 * kMs;
    if (batch % 100 < 50) return;
    step.samples = rank == 1 ? 48 : 16;
    phase(step, Phase::kBackward) = rank == 1 ? 10 * kMs : 4 * kMs;
  };
  const Synthetic run(plan);
  expect_first_finding(run.analysis, "uneven_shard", 1, 200 * 0.002);
  EXPECT_THAT(run.analysis.findings.front().evidence, HasSubstr("with even shares a batch's computing takes 13."));
}

TEST(PlantedFaults, ARankWithoutACoreHoldsUpTheExchangeAsWell) {
  expect_first_finding(Synthetic(run_with_a_rank_without_a_core()).analysis, "cpu_contention", 1, 500 * 0.010);
}

// Milliseconds more of a core that is slow in so many of five times of fifty steps.
double slower_ms(int rank, std::int64_t batch, std::int64_t of_five) {
  return (batch / 50 + 2 * rank) % 5 < of_five ? 3.0 : 0.0;
}

void expect_slow_but_no_fault(const Synthetic& run) {
  const Finding* const slow = run.finding("straggler");
  ASSERT_NE(slow, nullptr) << findings_text(run.analysis);
  EXPECT_EQ(slow->cause, "slow_compute");
  EXPECT_GT(slow->share, 0.03);
  EXPECT_FALSE(slow->fault);
  EXPECT_THAT(slow->evidence, HasSubstr("no more than cores of one kind differ by"));
}

TEST(PlantedFaults, CoresWhoseSpeedVariesAreNoFault) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kBackward) += std::llround(slower_ms(rank, batch, rank == 1 ? 2 : 1) * kMs);
  };
  expect_slow_but_no_fault(Synthetic(plan));
}

TEST(PlantedFaults, ACoreThatIsSlowForMostOfARunIsNoFault) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1) phase(step, Phase::kBackward) += std::llround(slower_ms(rank, batch, 3) / 3 * kMs);
  };
  expect_slow_but_no_fault(Synthetic(plan));
}

TEST(PlantedFaults, ARankThatIsThrottledInTheMiddleOfARunIsOne) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    if (rank == 1 && batch > 500) phase(step, Phase::kBackward) += 10 * kMs;
  };
  expect_first_finding(Synthetic(plan).analysis, "slow_compute", 1, 500 * 0.010);
}

TEST(PlantedFaults, ARankThatIsSlowerThanTheyVaryIsOne) {
  SyntheticRun plan;
  plan.steps = 1'000;
  plan.change = [](int rank, std::int64_t batch, SyntheticStep& step) {
    phase(step, Phase::kBackward) += std::llround((slower_ms(rank, batch, 1) + (rank == 1 ? 4.0 : 0.0)) * kMs);
  };
  expect_first_finding(Synthetic(plan).analysis, "slow_compute", 1, 1'000 * 0.004);
}

TEST(PlantedFaults, ALeakIsCountedInStepsThoughTheyDoNotComeEvenly) {
  SyntheticRun plan;
  plan.steps = 1'000;
  // The second half takes four times as long.
  plan.change = [](int, std::int64_t batch, SyntheticStep& step) {
    if (batch > 500) phase(step, Phase::kOther) += 30 * kMs;
  };
  Synthetic run(plan);
  for (RankProfile& rank : run.profile.ranks) {
    rank.memory.clear();
    for (std::size_t i = 0; i<rank.steps.size(); i += rank.steps[i].batch> 500 ? 10 : 40) {
      const StepLine& step = rank.steps[i];
      const std::int64_t kept = rank.rank == 1 ? 100'000 * step.batch : 0;
      rank.memory.push_back({.time_ns = step.start_ns + step.wall_ns,
                             .batch = step.batch,
                             .resident_bytes = 300'000'000 + kept,
                             .anonymous_bytes = 90'000'000 + kept});
    }
  }
  const Analysis analysis = analyze(run.profile);
  const Finding& first = analysis.findings.front();
  EXPECT_EQ(first.cause, "memory_leak") << findings_text(analysis);
  EXPECT_EQ(first.rank, 1);
  EXPECT_NEAR(first.bytes_per_step.value_or(0), 100'000, 1'000);
}

// Memory grows, and what is in use does not.
TEST(PlantedFaults, AFragmentedHeapIsNoLeakOfTheTrial) {
  SyntheticRun plan;
  plan.steps = 1'000;
  for (const double free_share : {0.9, 0.2}) {
    Synthetic run(plan);
    for (RankProfile& rank : run.profile.ranks) {
      rank.memory.clear();
      for (std::size_t i = 0; i < rank.steps.size(); i += 20) {
        const StepLine& step = rank.steps[i];
        const std::int64_t grown = 100'000 * step.batch;
        rank.memory.push_back({.time_ns = step.start_ns + step.wall_ns,
                               .batch = step.batch,
                               .resident_bytes = 300'000'000 + grown,
                               .anonymous_bytes = 90'000'000 + grown,
                               .free_heap_bytes = static_cast<std::int64_t>(free_share * static_cast<double>(grown))});
      }
    }
    const Finding first = analyze(run.profile).findings.front();
    EXPECT_EQ(first.cause, free_share > 0.5 ? "memory_fragmentation" : "memory_leak") << first.title;
    EXPECT_NEAR(first.bytes_per_step.value_or(0), 100'000, 1'000);
    EXPECT_EQ(first.advice.find("LD_PRELOAD") != std::string::npos, free_share > 0.5);
  }
}

}  // namespace
}  // namespace dtrain::analysis
