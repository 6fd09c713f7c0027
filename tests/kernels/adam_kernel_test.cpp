// The kernel of Adam and AdamW against the formulas in float64.
#include "device/kernels/adam.h"

#include <cmath>
#include <limits>

#include "flat_arrays.h"

namespace dtrain::test {
namespace {

using train::cuda::AdamArguments;
using train::cuda::AdamFactors;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t count = 0;
  int offset = 0;
  int blocks = 1;
  double beta1 = 0.9, beta2 = 0.999, weight_decay = 0.01;
  bool decoupled = true;
  bool narrow_gradients = false;
  Copy copy = Copy::kNone;
  std::optional<float> number, rate, divisor, found_inf;  // on the device
};

struct Numbers {
  std::vector<float> values, gradients, average, square;
};

Numbers numbers_for(const Case& c) {
  return {random_floats(c.count, 1), random_gradients(c.count, 2, c.narrow_gradients),
          random_floats(c.count, 3, -0.1, 0.1), random_floats(c.count, 4, 0, 0.1)};
}

struct Result {
  std::vector<float> values, average, square;
  bool operator==(const Result& other) const {
    return same_bits(values, other.values) && same_bits(average, other.average) && same_bits(square, other.square);
  }
};

constexpr double kRate = 0.01, kNumber = 3, kEps = 1e-8;

Result run(const Case& c, const Numbers& numbers, ThreadOrder order) {
  FlatArrays flat({.offset = c.offset,
                   .narrow_gradients = c.narrow_gradients,
                   .copy = c.copy,
                   .number = c.number,
                   .rate = c.rate,
                   .divisor = c.divisor,
                   .found_inf = c.found_inf},
                  numbers.values, numbers.gradients);
  Guarded<float> average(numbers.average, c.offset), square(numbers.square, c.offset);
  const AdamArguments arguments{.flat = flat.arguments(kNumber, kRate),
                                .average = average.data(),
                                .square = square.data(),
                                .beta1 = c.beta1,
                                .beta2 = c.beta2,
                                .eps = kEps,
                                .weight_decay = c.weight_decay,
                                .decoupled = c.decoupled};
  run_on_host<AdamFactors>([](auto& block, const auto& a) { train::cuda::update_adam(block, a); }, arguments, c.blocks,
                           order);
  flat.expect_guards();
  average.expect_guards();
  square.expect_guards();
  return {flat.values(), average.values(), square.values()};
}

// Algorithm 1 of arXiv:1412.6980 and algorithm 2 of arXiv:1711.05101.
void expect_formulas(const Case& c, const Numbers& before, const Result& after) {
  const double number = c.number.value_or(kNumber), rate = c.rate ? static_cast<double>(*c.rate) : kRate;
  for (std::size_t i = 0; i < before.values.size(); ++i) {
    double value = before.values[i], gradient = before.gradients[i] / static_cast<double>(c.divisor.value_or(1));
    if (c.decoupled) value -= rate * c.weight_decay * value;
    if (!c.decoupled) gradient += c.weight_decay * value;
    const double average = c.beta1 * before.average[i] + (1 - c.beta1) * gradient;
    const double square = c.beta2 * before.square[i] + (1 - c.beta2) * gradient * gradient;
    value -= rate * (average / (1 - std::pow(c.beta1, number))) /
             (std::sqrt(square / (1 - std::pow(c.beta2, number))) + kEps);
    ASSERT_NEAR(after.average[i], average, 1e-6) << i;
    ASSERT_NEAR(after.square[i], square, 1e-6) << i;
    // Where the square is small, its root divides by a number with the rounding of both averages.
    ASSERT_NEAR(after.values[i], value, 2e-6 * (1 + std::fabs(value)) + 1e-6 * rate / std::sqrt(square + 1e-12)) << i;
  }
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.count << " elements at offset " << c.offset << ", " << c.blocks << " blocks");
  const Numbers numbers = numbers_for(c);
  const Result forward = run(c, numbers, ThreadOrder::kForward);
  expect_formulas(c, numbers, forward);
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kBackward) == forward) << "a race";
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kShuffled) == forward) << "a race";
}

TEST(AdamKernel, SizesAlignmentsAndBlocks) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 63, 64, 255, 256, 257, 1023, 1024, 1025, 4099}) {
    for (const int offset : {0, 1, 2, 4}) {
      for (const int blocks : {1, 3})
        check({.count = count, .offset = offset, .blocks = blocks, .copy = Copy::kBfloat16});
    }
  }
}

TEST(AdamKernel, EachFormOfTheArguments) {
  for (const bool decoupled : {true, false}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool narrow : {false, true}) {
        for (const Copy copy : {Copy::kNone, Copy::kBfloat16, Copy::kFloat16}) {
          check({.count = 77, .weight_decay = decay, .decoupled = decoupled, .narrow_gradients = narrow, .copy = copy});
        }
      }
    }
  }
  check({.count = 33, .beta1 = 0.2, .beta2 = 0.5});  // averages that are mostly new
  check({.count = 33, .beta1 = 0, .beta2 = 0});
}

TEST(AdamKernel, ScalarsOnTheDeviceComeBeforeThoseOfTheHost) {
  check({.count = 70, .number = 1.0f});
  check({.count = 70, .number = 100.0f, .rate = 0.5f});
  check({.count = 70, .divisor = 4.0f, .found_inf = 0.0f});
}

TEST(AdamKernel, TheBitsDependOnNeitherAlignmentNorBlocks) {
  const Case aligned{.count = 1001, .divisor = 3.0f};
  const Result expected = run(aligned, numbers_for(aligned), ThreadOrder::kForward);
  for (const int offset : {1, 2, 3}) {
    for (const int blocks : {1, 2, 7}) {
      Case other = aligned;
      other.offset = offset;
      other.blocks = blocks;
      EXPECT_TRUE(run(other, numbers_for(other), ThreadOrder::kForward) == expected) << offset << ", " << blocks;
    }
  }
}

TEST(AdamKernel, WhatIsNotFiniteStaysWhereItIs) {
  const Case c{.count = 21, .copy = Copy::kBfloat16};
  const Result expected = run(c, numbers_for(c), ThreadOrder::kForward);
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    Numbers numbers = numbers_for(c);
    numbers.gradients[6] = static_cast<float>(bad);
    const Result result = run(c, numbers, ThreadOrder::kForward);
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      if (i == 6) {
        EXPECT_FALSE(std::isfinite(result.average[i])) << bad;
        EXPECT_TRUE(std::isnan(result.values[i])) << bad;  // infinity / infinity
      } else {
        EXPECT_EQ(result.values[i], expected.values[i]);
      }
    }
  }
}

TEST(AdamKernel, FoundInfStopsTheUpdate) {
  const Case c{.count = 300, .blocks = 2, .copy = Copy::kFloat16, .found_inf = 1.0f};
  Numbers numbers = numbers_for(c);
  numbers.gradients[0] = std::nanf("");
  const Result result = run(c, numbers, ThreadOrder::kShuffled);
  EXPECT_TRUE(same_bits(result.values, numbers.values));
  EXPECT_TRUE(same_bits(result.average, numbers.average));
  EXPECT_TRUE(same_bits(result.square, numbers.square));
}

}  // namespace
}  // namespace dtrain::test
