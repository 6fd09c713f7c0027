// The tuner on communicators that really exchange; only the step times are made up, from a simulated link.
#include "dtrain/comm/fusion_tuner.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <numeric>
#include <random>

#include "harness/run_ranks.h"
#include "tuner/sign_test.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

struct Model {
  std::vector<FusionItem> items;
  std::vector<double> ready_us;
};

Model layers(int count, std::int64_t bytes, double apart_us) {
  Model model;
  for (int i = 0; i < count; ++i) {
    model.items.push_back({0, i * bytes / 4, (i + 1) * bytes / 4, 4});
    model.ready_us.push_back(apart_us * (i + 1));
  }
  return model;
}

double exposed_us(const FusionPlan& plan, const Model& model, const LinkModel& link) {
  const auto exposed = predict_exposed_us(plan, model.ready_us, link);
  return std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

double exchanged_us(const FusionPlan& plan, const Model& model, const LinkModel& link) {
  return model.ready_us.back() + exposed_us(plan, model, link);
}

struct Outcome {
  std::vector<std::size_t> cuts;
  int steps = 0;
  double us = 0;
};

using Cost = std::function<ExchangeTimes(const FusionPlan&)>;

// Tunes on `ranks` ranks whose steps take `cost` of the plan in use, give or take `noise`. The times of a step are
// known `lag` steps later.
std::vector<Outcome> tune(int ranks, const Model& model, const Cost& cost, double noise, unsigned seed,
                          const FusionRule& rule = {}, int lag = 0) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  test::run_communicator_ranks(TestWorld(ranks), "thread", [&](Communicator& comm) {
    std::mt19937 random(seed + static_cast<unsigned>(comm.rank()));
    std::normal_distribution<double> factor(1, noise);
    FusionTuner tuner(model.items, rule, comm, comm, make_null_logger());
    std::deque<ExchangeTimes> on_their_way;
    Outcome& outcome = outcomes[static_cast<std::size_t>(comm.rank())];
    while (!tuner.done()) {
      ExchangeTimes times = cost(tuner.plan());
      times.exchanged_us *= factor(random);
      tuner.end_step();
      on_their_way.push_back(times);
      if (std::ssize(on_their_way) > lag) {
        tuner.add_times(model.ready_us, on_their_way.front());
        on_their_way.pop_front();
      }
      ++outcome.steps;
      ASSERT_LE(outcome.steps, FusionTuner::kMaxSteps);
    }
    const FusionPlan chosen = tuner.plan();
    tuner.end_step();
    tuner.add_times(model.ready_us, {1, 1});
    EXPECT_EQ(tuner.plan(), chosen);
    outcome.cuts = tuner.cuts();
    outcome.us = cost(tuner.plan()).exchanged_us;
    EXPECT_EQ(tuner.report()["steps"], outcome.steps);
  });
  return outcomes;
}

std::vector<Outcome> tune(int ranks, const Model& model, const LinkModel& link, double noise, unsigned seed,
                          const FusionRule& rule = {}, int lag = 0) {
  const auto cost = [&](const FusionPlan& plan) {
    return ExchangeTimes{exchanged_us(plan, model, link), exposed_us(plan, model, link)};
  };
  return tune(ranks, model, Cost(cost), noise, seed, rule, lag);
}

TEST(FusionTuner, FindsAPlanThatHidesCommunication) {
  const Model model = layers(12, 4 << 20, 10'000);
  const LinkModel link{200, 0.002};  // 8.6 ms a layer: hides behind the next one, but not all twelve behind the last
  const double by_default = exchanged_us(plan_fusion(model.items, 64 << 20), model, link);
  const auto outcomes = tune(3, model, link, 0.01, 1);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cuts, outcomes[0].cuts) << "all ranks choose alike";
    EXPECT_LT(outcome.us, 0.65 * by_default);
  }
}

// As on a device.
TEST(FusionTuner, TimesThatArriveLaterCountForTheirPlan) {
  const Model model = layers(12, 4 << 20, 10'000);
  const LinkModel link{200, 0.002};
  const double by_default = exchanged_us(plan_fusion(model.items, 64 << 20), model, link);
  for (int lag = 1; lag <= FusionTuner::kMostLag; ++lag) {
    const auto outcomes = tune(3, model, link, 0.01, 1, {}, lag);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.cuts, outcomes[0].cuts) << "all ranks choose alike";
      EXPECT_LT(outcome.us, 0.65 * by_default) << "lag " << lag;
    }
  }
}

TEST(FusionTuner, TheDefaultHasItsGaps) {
  const Model model = layers(12, 4 << 20, 10'000);
  const auto outcomes = tune(2, model, {0, 0}, 0.05, 1, {.cycle_us = 1000});
  EXPECT_EQ(outcomes[0].cuts.size(), 12u) << "each layer by itself, and nothing is better";
}

TEST(FusionTuner, KeepsTheDefaultWhereNothingIsToBeGained) {
  const Model model = layers(12, 4 << 20, 10'000);
  int changed = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto outcomes = tune(2, model, {0, 0}, 0.05, 100 * seed);
    changed += outcomes[0].cuts.size() == 1 ? 0 : 1;
    EXPECT_EQ(outcomes[0].cuts, outcomes[1].cuts);
  }
  EXPECT_LE(changed, 4) << "by luck in 2 of 100";
}

// Exchanges hide behind backward, but each takes from it what it hides: nothing is gained by that.
TEST(FusionTuner, LessExposedButNoSoonerIsNoGain) {
  const Model model = layers(12, 4 << 20, 10'000);
  const LinkModel link{200, 0.002};
  const double exchanged = exchanged_us(plan_fusion(model.items, 64 << 20), model, link);
  const auto cost = [&](const FusionPlan& plan) { return ExchangeTimes{exchanged, exposed_us(plan, model, link)}; };
  int changed = 0;
  for (unsigned seed = 0; seed < 20; ++seed) changed += tune(2, model, Cost(cost), 0.02, seed)[0].cuts.size() > 1;
  EXPECT_LE(changed, 2) << "by luck in 2 of 100";
}

TEST(FusionTuner, SoonerButMoreExposedIsNotTaken) {
  const Model model = layers(12, 4 << 20, 10'000);
  const LinkModel link{200, 0.002};
  const auto cost = [&](const FusionPlan& plan) {
    return ExchangeTimes{exchanged_us(plan, model, link), plan.buckets.size() > 1 ? 2000.0 : 1000.0};
  };
  EXPECT_EQ(tune(2, model, Cost(cost), 0.01, 1)[0].cuts.size(), 1u);
}

TEST(FusionTuner, AnAnswerOfAnEarlierRunIsUsedAtOnce) {
  const Model model = layers(4, 1 << 20, 1000);
  test::run_communicator_ranks(TestWorld(2), "thread", [&](Communicator& comm) {
    const FusionTuner tuner(model.items, {}, comm, comm, make_null_logger(), std::vector<std::size_t>{1, 3});
    EXPECT_TRUE(tuner.done());
    EXPECT_EQ(tuner.plan(), plan_with_cuts(model.items, std::vector<std::size_t>{1, 3}));
  });
}

TEST(FusionTuner, MeasuresTheLink) {
  for (const char* backend : {"thread", "shm"}) {
    test::run_communicator_ranks(TestWorld(2), backend, [](Communicator& comm) {
      const LinkModel link = measure_link(comm, comm);
      EXPECT_GT(link.us_per_byte, 0);
      EXPECT_GT(link.latency_us, 0);
      EXPECT_GT(link.time_us(4 << 20), link.time_us(4 << 10));
      EXPECT_EQ(max_over_ranks(comm, std::vector<double>{link.latency_us, link.us_per_byte}),
                (std::vector<double>{link.latency_us, link.us_per_byte}))
          << "the same on every rank";
    });
  }
}

TEST(FusionTuner, LinksAreAlikeWithinNoise) {
  const LinkModel gigabit{120, 0.0085}, tenth{150, 0.085};
  EXPECT_TRUE(alike(gigabit, gigabit));
  EXPECT_TRUE(alike(gigabit, {400, 0.012})) << "a busy machine";
  EXPECT_TRUE(alike({0, 0}, {0, 0}));
  EXPECT_FALSE(alike(gigabit, tenth));
  EXPECT_FALSE(alike(tenth, gigabit));
  EXPECT_FALSE(alike(gigabit, {20'000, 0.0085})) << "far away";
  EXPECT_FALSE(alike(gigabit, {120, 0.0034})) << "2.5 Gbit/s";
  EXPECT_FALSE(alike(gigabit, {120, 0}));
}

TEST(SignTest, GivesTheChanceOfAtLeastSoManyWins) {
  EXPECT_DOUBLE_EQ(chance_of_wins(0, 12), 1);
  EXPECT_DOUBLE_EQ(chance_of_wins(12, 12), 1.0 / 4096);
  EXPECT_NEAR(chance_of_wins(10, 12), 0.0193, 1e-4);
}

}  // namespace
}  // namespace dtrain::comm
