// How often the test finds what is not there, and how often what is.
#include "diff/compare_steps.h"

#include <gmock/gmock.h>

#include "made_runs.h"

namespace dtrain::analysis::diff {
namespace {

StepTest compare(const RunProfile& a, const RunProfile& b) {
  const Observations in_a = observe(a, false), in_b = observe(b, false);
  return compare_steps(in_a, in_b, find_turns(in_a, in_b), {.resamples = 600});
}

bool finds_anything(const StepTest& test) {
  std::vector<DiffVerdict> verdicts = {test.step.verdict, test.throughput.verdict};
  for (const DiffQuantity& phase : test.phases) verdicts.push_back(phase.verdict);
  return std::any_of(verdicts.begin(), verdicts.end(),
                     [](DiffVerdict verdict) { return verdict != DiffVerdict::kNoChange; });
}

const DiffQuantity& phase(const StepTest& test, const std::string& name) {
  return *std::find_if(test.phases.begin(), test.phases.end(), [&](const auto& one) { return one.name == name; });
}

TEST(CompareSteps, OfConstantStepsIsExact) {
  const StepTest test = compare(make_run(std::vector<double>(50, 10.0)), make_run(std::vector<double>(60, 11.0)));
  EXPECT_DOUBLE_EQ(test.step.a, 0.010);
  EXPECT_DOUBLE_EQ(test.step.b, 0.011);
  EXPECT_NEAR(test.step.change, 0.1, 1e-9);
  ASSERT_TRUE(test.step.interval);
  EXPECT_NEAR(test.step.interval->low, 0.1, 1e-9);
  EXPECT_NEAR(test.step.interval->high, 0.1, 1e-9);
  EXPECT_EQ(test.step.verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(test.throughput.a, 6400, 1e-6) << "two ranks with 32 samples each in 10 ms";
  EXPECT_NEAR(test.throughput.change, -1 / 11.0, 1e-9);
  EXPECT_EQ(test.throughput.verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(phase(test, "train_batch").change, 0.09, 1e-9) << "of A's step";
  EXPECT_NEAR(phase(test, "train_batch.backward").a, 0.002, 1e-9);
  EXPECT_NEAR(phase(test, "allreduce_wait").change, 0.01, 1e-9);
  EXPECT_EQ(phase(test, "train_batch").verdict, DiffVerdict::kWorse);
  EXPECT_EQ(phase(test, "optimizer_step").verdict, DiffVerdict::kNoChange);
  EXPECT_EQ(compare(make_run(std::vector<double>(60, 11.0)), make_run(std::vector<double>(50, 10.0))).step.verdict,
            DiffVerdict::kBetter);
}

TEST(CompareSteps, TooFewAreNotTested) {
  const StepTest test = compare(make_run(std::vector<double>(20, 10.0)), make_run(std::vector<double>(60, 20.0)));
  EXPECT_NEAR(test.step.change, 1, 1e-9);
  EXPECT_FALSE(test.step.interval);
  EXPECT_EQ(test.step.verdict, DiffVerdict::kUndecided);
  EXPECT_EQ(test.throughput.verdict, DiffVerdict::kUndecided);
}

TEST(CompareSteps, FindsNothingWhereThereIsOnlyNoiseThatHangsOn) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    found += finds_anything(compare(make_run(ar_steps(400, 10, 0.05, 0.7, 2 * seed)),
                                    make_run(ar_steps(400, 10, 0.05, 0.7, 2 * seed + 1))));
  }
  EXPECT_LE(found, 1);
}

// The same without blocks would find a change in many of these: the intervals must be as wide as the series says.
TEST(CompareSteps, ItsIntervalsAreHonest) {
  int missed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const StepTest test = compare(make_run(ar_steps(600, 10, 0.05, 0.8, 2 * seed + 1000)),
                                  make_run(ar_steps(600, 10, 0.05, 0.8, 2 * seed + 1001)));
    missed += test.step.interval->low > 0 || test.step.interval->high < 0;
    EXPECT_GT(test.a.block_length, 8);
    EXPECT_NEAR(test.a.autocorrelation, 0.8, 0.12);
  }
  EXPECT_LE(missed, 3) << "of 40, at 99%";
}

TEST(CompareSteps, FindsFivePercent) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const StepTest test = compare(make_run(ar_steps(400, 10, 0.03, 0.6, 2 * seed)),
                                  make_run(ar_steps(400, 10.5, 0.03, 0.6, 2 * seed + 1)));
    found += test.step.verdict == DiffVerdict::kWorse && phase(test, "train_batch").verdict == DiffVerdict::kWorse;
  }
  EXPECT_GE(found, 19);
}

TEST(CompareSteps, ChangesTooSmallToCountAreNone) {
  const StepTest test =
      compare(make_run(ar_steps(2000, 10, 0.005, 0, 1)), make_run(ar_steps(2000, 10.05, 0.005, 0, 2)));
  EXPECT_GT(test.step.interval->low, 0) << "it is there";
  EXPECT_EQ(test.step.verdict, DiffVerdict::kNoChange) << "and below 1%";
}

TEST(CompareSteps, LongStepsLowerThroughputAndNotTheMedian) {
  std::vector<double> b = ar_steps(600, 10, 0.02, 0.3, 2);
  for (std::size_t i = 7; i < b.size(); i += 30) b[i] = 60;
  const StepTest test = compare(make_run(ar_steps(600, 10, 0.02, 0.3, 1)), make_run(b));
  EXPECT_EQ(test.step.verdict, DiffVerdict::kNoChange);
  EXPECT_EQ(test.throughput.verdict, DiffVerdict::kWorse);
  EXPECT_NEAR(test.throughput.change, 1 / (1 + 5 / 30.0) - 1, 0.01);
  EXPECT_EQ(phase(test, "train_batch").verdict, DiffVerdict::kNoChange) << "phases are of ordinary steps";
}

// A machine that gets slower and faster by a fifth, and two runs that take turns of four steps on it.
struct Turns {
  explicit Turns(double slower, std::uint64_t seed) {
    const std::vector<double> drift = ar_steps(1200, 10, 0.2, 0.998, seed);
    const std::vector<double> noise = ar_steps(1200, 1, 0.05, 0.3, seed + 1);
    double now = 0;
    for (std::size_t i = 0; i < drift.size(); ++i) {
      const bool of_b = i / 4 % 2 == 1;
      const double step = std::max(1.0, drift[i]) * noise[i] * (of_b ? slower : 1);
      (of_b ? b : a).push_back(step);
      (of_b ? b_starts : a_starts).push_back(now);
      now += step / 1e3;
    }
  }
  std::vector<double> a, b, a_starts, b_starts;
  StepTest test(bool clock) const {
    return compare(make_run(a, {.wall_clock = clock, .starts = a_starts}),
                   make_run(b, {.wall_clock = clock, .starts = b_starts}));
  }
};

TEST(CompareSteps, InTurnsDriftCancels) {
  int found = 0, found_apart = 0, wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Turns stalled(1.05, 10 * seed), equal(1, 10 * seed + 5);
    found += stalled.test(true).step.verdict == DiffVerdict::kWorse;
    found_apart += stalled.test(false).step.verdict == DiffVerdict::kWorse;
    wrong += finds_anything(equal.test(true));
  }
  EXPECT_GE(found, 19);
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(found_apart, 5) << "what was no turn must count the drift as noise";
}

TEST(FindTurns, NeedsStepsOfEachBetweenTheOthers) {
  const Turns turns(1, 3);
  const auto found = [&](const MadeRun& b_made) {
    return find_turns(observe(make_run(turns.a, {.wall_clock = true, .starts = turns.a_starts}), false),
                      observe(make_run(turns.b, b_made), false));
  };
  const auto pairs = found({.wall_clock = true, .starts = turns.b_starts});
  EXPECT_NEAR(static_cast<double>(pairs.size()), 135, 2) << "150, a tenth of them in the warm-up";
  for (const Turn& turn : pairs) {
    EXPECT_LE(turn.a.size(), 4U);
    EXPECT_EQ(turn.b.size(), 4U);
  }
  std::vector<double> later = turns.b_starts;
  for (double& start : later) start += 1e5;
  EXPECT_TRUE(found({.wall_clock = true, .starts = later}).empty()) << "one after the other";
  EXPECT_TRUE(found({.wall_clock = false, .starts = turns.b_starts}).empty()) << "clocks that cannot be compared";
}

}  // namespace
}  // namespace dtrain::analysis::diff
