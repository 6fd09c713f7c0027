#include "dtrain/profile/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace dtrain::profile {
namespace {

constexpr double kShares[] = {0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999};

// The definition the sketch promises to be close to.
double exact_quantile(const std::vector<std::int64_t>& sorted, double share) {
  return static_cast<double>(sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))]);
}

std::vector<std::int64_t> step_times(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> times(16, 0.3);  // around 9 ms, in nanoseconds
  std::vector<std::int64_t> values(count);
  for (std::int64_t& value : values) {
    value = std::llround(times(random));
    if (random() % 500 == 0) value *= 100;  // a stall
  }
  return values;
}

Sketch sketch_from(const std::vector<std::int64_t>& values) {
  Sketch sketch;
  for (const std::int64_t value : values) sketch.add(value);
  return sketch;
}

// The numbers of a sketch.
struct Numbers {
  explicit Numbers(const Sketch& sketch)
      : count(sketch.count()), sum(sketch.sum()), min(sketch.min()), max(sketch.max()), zeros(sketch.zeros()) {
    for (const Sketch::Bin& bin : sketch.bins()) bins.insert(bins.end(), {bin.index, bin.count});
  }
  std::optional<Sketch> restored() const { return Sketch::restore(count, sum, min, max, zeros, bins); }

  std::int64_t count, sum, min, max, zeros;
  std::vector<std::int64_t> bins;
};

TEST(Sketch, EveryQuantileIsWithinTheStatedError) {
  std::vector<std::int64_t> values = step_times(1, 20'000);
  const Sketch sketch = sketch_from(values);
  std::sort(values.begin(), values.end());
  for (const double share : kShares) {
    const double exact = exact_quantile(values, share);
    EXPECT_NEAR(sketch.quantile(share), exact, exact * Sketch::kRelativeError * 1.0001) << share;
  }
  EXPECT_EQ(sketch.quantile(0), static_cast<double>(values.front()));
  EXPECT_EQ(sketch.quantile(1), static_cast<double>(values.back()));
}

TEST(Sketch, EverySingleValueIsWithinTheStatedError) {
  std::int64_t value = 1;
  while (value < std::numeric_limits<std::int64_t>::max() / 2) {
    Sketch sketch;
    sketch.add(value - 1);
    sketch.add(value);
    sketch.add(value * 2);
    EXPECT_NEAR(sketch.quantile(0.5), static_cast<double>(value), static_cast<double>(value) * 0.0100001);
    value += value / 3 + 1;
  }
}

TEST(Sketch, CountSumAndEndsAreExact) {
  const std::vector<std::int64_t> values = step_times(2, 5'000);
  const Sketch sketch = sketch_from(values);
  EXPECT_EQ(sketch.count(), 5'000);
  std::int64_t sum = 0;
  for (const std::int64_t value : values) sum += value;
  EXPECT_EQ(sketch.sum(), sum);
  EXPECT_EQ(sketch.min(), *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(sketch.max(), *std::max_element(values.begin(), values.end()));
  EXPECT_DOUBLE_EQ(sketch.mean(), static_cast<double>(sum) / 5'000);
}

TEST(Sketch, MergedPartsAreTheSketchOfTheWhole) {
  const std::vector<std::int64_t> values = step_times(3, 3'000);
  Sketch merged;
  for (std::size_t part = 0; part < 3; ++part) {
    Sketch sketch;
    for (std::size_t i = part * 1'000; i < (part + 1) * 1'000; ++i) sketch.add(values[i]);
    merged.merge(sketch);
  }
  EXPECT_EQ(merged, sketch_from(values));
  merged.merge(Sketch());
  EXPECT_EQ(merged, sketch_from(values));
  Sketch empty;
  empty.merge(merged);
  EXPECT_EQ(empty, merged) << "the ends of an empty sketch are no values";
}

TEST(Sketch, SeveralTimesIsAddingSeveralTimes) {
  Sketch once, many;
  for (int i = 0; i < 7; ++i) once.add(1'234);
  many.add(1'234, 7);
  many.add(99, 0);
  EXPECT_EQ(once, many);
}

TEST(Sketch, ZeroAndBelow) {
  Sketch sketch;
  sketch.add(0, 90);
  sketch.add(1'000, 9);
  sketch.add(-5);
  EXPECT_EQ(sketch.zeros(), 91);
  EXPECT_EQ(sketch.quantile(0.5), 0);
  EXPECT_NEAR(sketch.quantile(0.95), 1'000, 10);
  EXPECT_EQ(sketch.min(), -5);
  EXPECT_EQ(sketch.sum(), 8'995);
  EXPECT_EQ(Sketch().quantile(0.5), 0);
  EXPECT_EQ(Sketch().mean(), 0);
}

TEST(Sketch, LargestIntegersFitAndSumsStayAtTheEnd) {
  Sketch sketch;
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  sketch.add(largest, 3);
  EXPECT_EQ(sketch.sum(), largest);
  EXPECT_TRUE(Numbers(sketch).restored().has_value()) << "its bin is a legal one";
  sketch.merge(sketch_from({largest, 1}));
  EXPECT_EQ(sketch.sum(), largest);
  EXPECT_EQ(sketch.count(), 5);
}

TEST(Sketch, ItsNumbersGiveTheSameSketch) {
  for (const Sketch& sketch : {sketch_from(step_times(4, 1'000)), sketch_from({0, 0, -1}), Sketch()}) {
    EXPECT_EQ(Numbers(sketch).restored(), sketch);
  }
}

TEST(Sketch, DamagedNumbersAreNoSketch) {
  const Numbers good(sketch_from({0, 10, 1'000, 1'000}));
  ASSERT_TRUE(good.restored().has_value());
  const auto damaged = [&good](std::int64_t Numbers::*number, std::int64_t value) {
    Numbers numbers = good;
    numbers.*number = value;
    return numbers.restored();
  };
  EXPECT_FALSE(damaged(&Numbers::count, 5).has_value()) << "the bins hold another number";
  EXPECT_FALSE(damaged(&Numbers::zeros, -1).has_value());
  EXPECT_FALSE(damaged(&Numbers::min, 2'000).has_value());
  const auto with_bins = [&good](const std::vector<std::int64_t>& bins) {
    Numbers numbers = good;
    numbers.bins = bins;
    return numbers.restored();
  };
  EXPECT_FALSE(with_bins({116, 1, 346}).has_value()) << "half a pair";
  EXPECT_FALSE(with_bins({346, 2, 116, 1}).has_value()) << "not in order";
  EXPECT_FALSE(with_bins({116, 1, 1'000'000, 2}).has_value()) << "no such bin";
  EXPECT_FALSE(with_bins({116, 1, 346, 0}).has_value());
}

TEST(Sketch, AHundredThousandStepTimesTakeFewBins) {
  EXPECT_LT(sketch_from(step_times(5, 100'000)).bins().size(), 400u);
}

}  // namespace
}  // namespace dtrain::profile
