#include "measure/evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace dtrain::analysis {
namespace {

using testing::ElementsAre;

std::vector<double> ones(std::size_t count) {
  return std::vector<double>(count, 1);
}

TEST(Regular, AllOfThem) {
  const auto found = find_regular({10, 50, 91, 130}, ones(4), 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->interval, 40);
  EXPECT_THAT(found->members, ElementsAre(0, 1, 2, 3));
}

TEST(Regular, FewerThanThreeAreNot) {
  EXPECT_FALSE(find_regular({10, 50}, ones(2), 1));
  EXPECT_FALSE(find_regular({}, {}, 1));
}

// Every 40th, 27 of them; and so many others, in between.
struct Mixed {
  explicit Mixed(int others, double other_weight, std::uint64_t seed = 1) {
    std::vector<std::pair<double, double>> events;
    for (int i = 1; i <= 27; ++i) events.emplace_back(40.0 * i, 1);
    std::mt19937_64 random(seed);
    for (int i = 0; i < others; ++i) {
      const auto moment = static_cast<double>(random() % 1'080);
      if (std::any_of(events.begin(), events.end(), [&](const auto& event) { return event.first == moment; })) continue;
      events.emplace_back(moment, other_weight);
    }
    std::sort(events.begin(), events.end());
    for (const auto& [moment, weight] : events) {
      moments.push_back(moment);
      weights.push_back(weight);
    }
  }
  std::vector<double> moments, weights;
};

TEST(Regular, ThoseAmongOthers) {
  const Mixed mixed(25, 0.5);
  const auto found = find_regular(mixed.moments, mixed.weights, 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->interval, 40);
  EXPECT_EQ(found->members.size(), 27u);
  for (const std::size_t i : found->members) EXPECT_EQ(mixed.weights[i], 1) << "at " << mixed.moments[i];
}

TEST(Regular, NotWhereTheOthersWeighMore) {
  const Mixed mixed(25, 2);
  EXPECT_FALSE(find_regular(mixed.moments, mixed.weights, 1));
}

TEST(Regular, OneThatIsMissingIsGoneOver) {
  std::vector<double> moments = {3};  // not one of them
  for (int i = 1; i <= 20; ++i) {
    if (i % 5 != 0) moments.push_back(40.0 * i);
  }
  const auto found = find_regular(moments, ones(moments.size()), 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->interval, 40);
}

TEST(Regular, NotByChance) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<double> moments;
    for (int i = 0; i < 40; ++i) moments.push_back(static_cast<double>(random() % 1'000));
    std::sort(moments.begin(), moments.end());
    std::vector<double> weights;
    for (std::size_t i = 0; i < moments.size(); ++i) weights.push_back(1 + static_cast<double>(random() % 10));
    found += find_regular(moments, weights, 1) ? 1 : 0;
  }
  EXPECT_LE(found, 2);
}

}  // namespace
}  // namespace dtrain::analysis
