// The kernels of Muon against the formulas in float64.
#include "device/kernels/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "flat_arrays.h"

namespace dtrain::test {
namespace {

using train::cuda::from_bfloat16;
using train::cuda::MuonArguments;
using train::cuda::MuonFactors;
using train::cuda::MuonSums;

constexpr double kRate = 0.01, kDecay = 0.1, kScale = 1.5;
constexpr double kHalfBit = 1.0 / 256;  // of bfloat16, relative

struct Case {
  std::int64_t count = 0;
  int sum_blocks = 1, blocks = 1;
  double momentum = 0.95;
  bool nesterov = true;
  FlatCase flat{};
};

struct Numbers {
  std::vector<float> values, gradients, average;
};

Numbers numbers_for(const Case& c) {
  return {random_floats(c.count, 1), random_gradients(c.count, 2, c.flat.narrow_gradients), random_floats(c.count, 3)};
}

struct Result {
  std::vector<float> values, average;
  std::vector<std::uint16_t> direction;
  bool operator==(const Result& other) const {
    return same_bits(values, other.values) && same_bits(average, other.average) &&
           same_bits(direction, other.direction);
  }
};

// The step is the direction itself.
Result run(const Case& c, const Numbers& numbers, ThreadOrder order) {
  FlatArrays flat(c.flat, numbers.values, numbers.gradients);
  Guarded<float> average(numbers.average, c.flat.offset);
  Guarded<std::uint16_t> direction(c.count, c.flat.offset);
  Guarded<double> sums(c.sum_blocks, 0);
  const MuonArguments arguments{.flat = flat.arguments(3, kRate),
                                .average = average.data(),
                                .direction = direction.data(),
                                .sums = sums.data(),
                                .sum_blocks = c.sum_blocks,
                                .momentum = c.momentum,
                                .nesterov = c.nesterov,
                                .weight_decay = kDecay,
                                .scale = kScale};
  run_on_host<MuonSums>([](auto& block, const auto& a) { train::cuda::direct_muon(block, a); }, arguments, c.sum_blocks,
                        order);
  run_on_host<MuonSums>([](auto& block, const auto& a) { train::cuda::scale_muon(block, a); }, arguments, c.blocks,
                        order);
  run_on_host<MuonFactors>([](auto& block, const auto& a) { train::cuda::move_muon(block, a); }, arguments, c.blocks,
                           order);
  flat.expect_guards();
  average.expect_guards();
  direction.expect_guards();
  sums.expect_guards();
  return {flat.values(), average.values(), direction.values()};
}

void expect_formulas(const Case& c, const Numbers& before, const Result& after) {
  const double rate = c.flat.rate ? static_cast<double>(*c.flat.rate) : kRate;
  std::vector<double> directions;
  double squares = 0;
  for (std::size_t i = 0; i < before.values.size(); ++i) {
    const double gradient = before.gradients[i] / c.flat.divisor.value_or(1);
    const double average = c.momentum * before.average[i] + (1 - c.momentum) * gradient;
    ASSERT_NEAR(after.average[i], average, 1e-6) << i;
    const double direction = c.nesterov ? (1 - c.momentum) * gradient + c.momentum * average : average;
    directions.push_back(direction);
    squares += direction * direction;
  }
  const double norm = std::max(std::sqrt(squares), 1e-7);
  for (std::size_t i = 0; i < before.values.size(); ++i) {
    const double direction = directions[i] / norm, written = from_bfloat16(after.direction[i]);
    ASSERT_NEAR(written, direction, 3 * kHalfBit * std::fabs(direction) + 1e-6) << i;
    const double value = before.values[i] * (1 - rate * kDecay) - rate * kScale * written;
    ASSERT_NEAR(after.values[i], value, 1e-6) << i;
  }
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.count << " elements at offset " << c.flat.offset << ", " << c.sum_blocks
                                  << " and " << c.blocks << " blocks");
  const Numbers numbers = numbers_for(c);
  const Result forward = run(c, numbers, ThreadOrder::kForward);
  expect_formulas(c, numbers, forward);
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kBackward) == forward) << "a race";
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kShuffled) == forward) << "a race";
}

TEST(MuonKernel, SizesAlignmentsAndBlocks) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 63, 64, 255, 256, 257, 1023, 1024, 1025, 4099}) {
    for (const int offset : {0, 1, 2, 4}) {
      for (const int blocks : {1, 3}) {
        check({.count = count, .sum_blocks = blocks, .blocks = 2, .flat = {.offset = offset, .copy = Copy::kBfloat16}});
      }
    }
  }
  check({.count = 5000, .sum_blocks = train::cuda::kThreads + 9});
}

TEST(MuonKernel, EachFormOfTheArguments) {
  for (const bool nesterov : {false, true}) {
    for (const double momentum : {0.95, 0.3, 0.0}) {
      for (const bool narrow : {false, true}) {
        for (const Copy copy : {Copy::kNone, Copy::kBfloat16, Copy::kFloat16}) {
          check({.count = 77,
                 .momentum = momentum,
                 .nesterov = nesterov,
                 .flat = {.narrow_gradients = narrow, .copy = copy}});
        }
      }
    }
  }
  check({.count = 70, .flat = {.rate = 0.5f}});
  check({.count = 70, .flat = {.divisor = 4.0f, .found_inf = 0.0f}});
}

TEST(MuonKernel, AMatrixOfZerosStaysOne) {
  const Case c{.count = 40};
  Numbers numbers = numbers_for(c);
  numbers.gradients.assign(40, 0);
  numbers.average.assign(40, 0);
  const Result result = run(c, numbers, ThreadOrder::kForward);
  for (const std::uint16_t direction : result.direction) EXPECT_EQ(direction, 0);
  expect_formulas(c, numbers, result);
}

TEST(MuonKernel, WhatIsNotFiniteReachesTheWholeMatrix) {
  const Case c{.count = 21, .nesterov = false};  // else infinity - infinity
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Numbers numbers = numbers_for(c);
    numbers.gradients[6] = bad;
    const Result result = run(c, numbers, ThreadOrder::kForward);
    EXPECT_TRUE(std::isnan(result.values[6])) << bad;
    EXPECT_FALSE(std::isfinite(result.average[6])) << bad;
    EXPECT_TRUE(std::isfinite(result.average[7])) << bad;
    EXPECT_EQ(std::isnan(from_bfloat16(result.direction[7])), std::isnan(bad));
  }
}

TEST(MuonKernel, FoundInfStopsTheUpdate) {
  const Case c{.count = 300, .sum_blocks = 2, .blocks = 2, .flat = {.copy = Copy::kFloat16, .found_inf = 1.0f}};
  Numbers numbers = numbers_for(c);
  numbers.gradients[0] = std::nanf("");
  const Result result = run(c, numbers, ThreadOrder::kShuffled);
  EXPECT_TRUE(same_bits(result.values, numbers.values));
  EXPECT_TRUE(same_bits(result.average, numbers.average));
}

}  // namespace
}  // namespace dtrain::test
