#include "dtrain/base/numeric.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace dtrain {
namespace {

TEST(Statistics, QuantilesAreNearestRank) {
  std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_EQ(quantile(values, 0.99), 5);
  EXPECT_EQ(quantile(values, 0), 1);
}

TEST(Statistics, MediansDifferWhereTheNumberOfValuesIsEven) {
  std::vector<double> odd = {3, 1, 2}, even = {40, 10, 20, 30};
  EXPECT_EQ(median_low(odd), 2);
  EXPECT_EQ(median_midpoint(odd), 2);
  EXPECT_EQ(median_low(even), 20);
  EXPECT_EQ(median_midpoint(even), 25);
  EXPECT_EQ(median_high(odd), 2);
  EXPECT_EQ(median_high(even), 30);
  std::vector<std::int64_t> integers = {7, 5};
  EXPECT_EQ(median_high(integers), 7);
}

TEST(Statistics, OfNoValuesAreZero) {
  std::vector<double> none;
  EXPECT_EQ(quantile(none, 0.5), 0);
  EXPECT_EQ(mean(none), 0);
  EXPECT_EQ(median_low(none), 0);
  EXPECT_EQ(median_midpoint(none), 0);
  EXPECT_EQ(median_high(none), 0);
}

}  // namespace
}  // namespace dtrain
