// Plans as pure functions: what closes a bucket, what a plan is predicted to cost, and that the best one is the best.
#include "dtrain/comm/fusion_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace dtrain::comm {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

// Gradients of these sizes in bytes, one after the other in one flat buffer of floats.
std::vector<FusionItem> items_of(const std::vector<std::int64_t>& bytes) {
  std::vector<FusionItem> items;
  std::int64_t at = 0;
  for (const std::int64_t b : bytes) {
    items.push_back({0, at, at + b / 4, 4});
    at += b / 4;
  }
  return items;
}

std::vector<std::int64_t> bytes_of(const FusionPlan& plan) {
  std::vector<std::int64_t> bytes;
  for (const auto& bucket : plan.buckets) bytes.push_back(bucket.bytes);
  return bytes;
}

double total(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(FusionPlan, ABucketClosesAtTheThreshold) {
  const auto items = items_of({100, 100, 400, 100, 100});
  EXPECT_THAT(bytes_of(plan_fusion(items, 1 << 20)), ElementsAre(800));
  EXPECT_THAT(bytes_of(plan_fusion(items, 300)), ElementsAre(600, 200));
  EXPECT_THAT(bytes_of(plan_fusion(items, 0)), ElementsAre(100, 100, 400, 100, 100));
}

TEST(FusionPlan, ABucketClosesBeforeALongGap) {
  const auto items = items_of({100, 100, 400, 100, 100});
  const std::vector<double> ready{10, 20, 1500, 1490, 3000};  // the fourth is ready before the third
  EXPECT_THAT(bytes_of(plan_fusion(items, 1 << 20, ready, 1000)), ElementsAre(200, 500, 100));
  EXPECT_THAT(bytes_of(plan_fusion(items, 1 << 20, ready, 0)), ElementsAre(800));
  EXPECT_THAT(bytes_of(plan_fusion(items, 300, ready, 1000)), ElementsAre(200, 400, 100, 100));
}

TEST(FusionPlan, CutsCloseBucketsOfTheirOwnType) {
  std::vector<FusionItem> items{{0, 0, 10, 4}, {1, 0, 10, 8}, {0, 10, 20, 4}, {1, 10, 20, 8}, {0, 20, 30, 4}};
  const FusionPlan plan = plan_with_cuts(items, std::vector<std::size_t>{2, 3, 4});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_THAT(plan.buckets[0].items, ElementsAre(0, 2));
  EXPECT_THAT(plan.buckets[1].items, ElementsAre(1, 3));
  EXPECT_THAT(plan.buckets[2].items, ElementsAre(4));
  EXPECT_EQ(plan.buckets[0].bytes, 80);
  EXPECT_EQ(plan.buckets[1].bytes, 160);
}

// What is remembered of a plan, the default included, gives that plan again.
TEST(FusionPlan, CutsTellAPlanAlsoOfSeveralTypes) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<FusionItem> items;
    std::vector<double> ready;
    std::int64_t at[2] = {0, 0};
    for (int i = 0; i < 12; ++i) {
      const std::size_t group = random() % 2;
      const auto count = static_cast<std::int64_t>(16 + random() % 500);
      items.push_back({group, at[group], at[group] + count, group ? 8 : 4});
      at[group] += count;
      ready.push_back((ready.empty() ? 0 : ready.back()) + static_cast<double>(random() % 300));
    }
    const std::int64_t threshold = round % 4 ? static_cast<std::int64_t>(random() % 8000) : 1 << 20;
    for (const double cycle_us : {0.0, 200.0}) {
      const FusionPlan plan = plan_fusion(items, threshold, ready, cycle_us);
      EXPECT_EQ(plan_with_cuts(items, cuts_of(plan)), plan) << "round " << round;
    }
    const auto best = best_cuts(items, ready, {50, 0.01});
    EXPECT_EQ(cuts_of(plan_with_cuts(items, best)), best);
  }
}

TEST(FusionPlan, WhatLiesBehindBackwardIsExposed) {
  const auto items = items_of({1000, 1000, 1000});
  const std::vector<double> ready{100, 200, 300};
  const LinkModel link{10, 0.05};  // 60 us for one of them
  EXPECT_THAT(predict_exposed_us(plan_fusion(items, 0), ready, link), Pointwise(DoubleNear(1e-9), {0.0, 0.0, 60.0}));
  EXPECT_THAT(predict_exposed_us(plan_fusion(items, 1 << 20), ready, link), Pointwise(DoubleNear(1e-9), {160.0}));
  const LinkModel slow{10, 0.5};  // 510 us: the second begins when the first is through, at 610
  EXPECT_THAT(predict_exposed_us(plan_fusion(items, 0), ready, slow),
              Pointwise(DoubleNear(1e-9), {310.0, 510.0, 510.0}));
}

TEST(FusionPlan, TheBestCutsAreAsGoodAsTheBestOfAll) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t n = 1 + random() % 9;
    const bool two_types = round % 3 == 0;
    std::vector<FusionItem> items;
    std::vector<double> ready;
    std::int64_t at[2] = {0, 0};
    double time = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t group = two_types ? random() % 2 : 0;
      const auto count = static_cast<std::int64_t>(16 + random() % 5000);
      items.push_back({group, at[group], at[group] + count, group ? 8 : 4});
      at[group] += count;
      time += static_cast<double>(random() % 300);
      ready.push_back(time);
    }
    const LinkModel link{static_cast<double>(random() % 200), static_cast<double>(random() % 100) / 2000};
    double best = 1e300;
    for (unsigned mask = 0; mask < 1u << (n - 1); ++mask) {
      std::vector<std::size_t> cuts;
      for (std::size_t i = 0; i + 1 < n; ++i) {
        if (mask >> i & 1) cuts.push_back(i);
      }
      best = std::min(best, total(predict_exposed_us(plan_with_cuts(items, cuts), ready, link)));
    }
    const auto cuts = best_cuts(items, ready, link);
    const double found = total(predict_exposed_us(plan_with_cuts(items, cuts), ready, link));
    // With several types a piece counts as begun when its last gradient is ready; its first exchanges begin earlier.
    EXPECT_GE(found, best - 1e-6);
    if (!two_types) {
      EXPECT_NEAR(found, best, 1e-6) << n << " gradients, round " << round;
    }
    EXPECT_EQ(cuts.back(), n - 1);
    EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
  }
}

}  // namespace
}  // namespace dtrain::comm
