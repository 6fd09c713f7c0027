// The kernel of SGD against the formulas in float64.
#include "device/kernels/sgd.h"

#include <cmath>
#include <limits>

#include "flat_arrays.h"

namespace dtrain::test {
namespace {

using train::cuda::SgdArguments;
using train::cuda::SgdFactors;

constexpr double kRate = 0.01;

struct Case {
  std::int64_t count = 0;
  int blocks = 1;
  double momentum = 0.9, dampening = 0, weight_decay = 0.01;
  bool nesterov = false, first = false;
  FlatCase flat{};
};

struct Numbers {
  std::vector<float> values, gradients, momentum;
  bool operator==(const Numbers& other) const {
    return same_bits(values, other.values) && same_bits(momentum, other.momentum);
  }
};

Numbers numbers_for(const Case& c) {
  return {random_floats(c.count, 1), random_gradients(c.count, 2, c.flat.narrow_gradients), random_floats(c.count, 3)};
}

Numbers run(const Case& c, const Numbers& numbers, ThreadOrder order) {
  FlatArrays flat(c.flat, numbers.values, numbers.gradients);
  Guarded<float> momentum(numbers.momentum, c.flat.offset);
  const SgdArguments arguments{.flat = flat.arguments(3, kRate),
                               .momentum = c.momentum == 0 ? nullptr : momentum.data(),
                               .factor = c.momentum,
                               .dampening = c.dampening,
                               .weight_decay = c.weight_decay,
                               .nesterov = c.nesterov,
                               .first = c.first};
  run_on_host<SgdFactors>([](auto& block, const auto& a) { train::cuda::update_sgd(block, a); }, arguments, c.blocks,
                          order);
  flat.expect_guards();
  momentum.expect_guards();
  return {flat.values(), numbers.gradients, momentum.values()};
}

// torch.optim.SGD.
void expect_formulas(const Case& c, const Numbers& before, const Numbers& after) {
  const double rate = c.flat.rate ? static_cast<double>(*c.flat.rate) : kRate;
  for (std::size_t i = 0; i < before.values.size(); ++i) {
    double value = before.values[i], momentum = before.momentum[i];
    const double gradient = before.gradients[i] / c.flat.divisor.value_or(1) + c.weight_decay * value;
    double step = gradient;
    if (c.momentum != 0) {
      momentum = c.first ? gradient : c.momentum * momentum + (1 - c.dampening) * gradient;
      step = c.nesterov ? gradient + c.momentum * momentum : momentum;
    }
    ASSERT_NEAR(after.momentum[i], momentum, 1e-6) << i;
    ASSERT_NEAR(after.values[i], value - rate * step, 1e-6) << i;
  }
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.count << " elements at offset " << c.flat.offset << ", " << c.blocks
                                  << " blocks");
  const Numbers numbers = numbers_for(c);
  const Numbers forward = run(c, numbers, ThreadOrder::kForward);
  expect_formulas(c, numbers, forward);
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kBackward) == forward) << "a race";
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kShuffled) == forward) << "a race";
}

TEST(SgdKernel, SizesAlignmentsAndBlocks) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 63, 64, 255, 256, 257, 1023, 1024, 1025, 4099}) {
    for (const int offset : {0, 1, 2, 4}) {
      for (const int blocks : {1, 3}) {
        check({.count = count, .blocks = blocks, .flat = {.offset = offset, .copy = Copy::kBfloat16}});
      }
    }
  }
}

TEST(SgdKernel, EachFormOfTheArguments) {
  for (const bool first : {false, true}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool narrow : {false, true}) {
        for (const Copy copy : {Copy::kNone, Copy::kBfloat16, Copy::kFloat16}) {
          const FlatCase flat{.narrow_gradients = narrow, .copy = copy};
          check({.count = 77, .weight_decay = decay, .first = first, .flat = flat});
          check({.count = 77, .weight_decay = decay, .nesterov = true, .first = first, .flat = flat});
          check({.count = 77, .momentum = 0, .weight_decay = decay, .first = first, .flat = flat});
        }
      }
    }
  }
  check({.count = 33, .dampening = 0.5});
}

TEST(SgdKernel, ScalarsOnTheDeviceComeBeforeThoseOfTheHost) {
  check({.count = 70, .flat = {.rate = 0.5f}});
  check({.count = 70, .flat = {.divisor = 4.0f, .found_inf = 0.0f}});
}

TEST(SgdKernel, TheBitsDependOnNeitherAlignmentNorBlocks) {
  const Case aligned{.count = 1001, .flat = {.divisor = 3.0f}};
  const Numbers expected = run(aligned, numbers_for(aligned), ThreadOrder::kForward);
  for (const int offset : {1, 2, 3}) {
    for (const int blocks : {1, 2, 7}) {
      Case other = aligned;
      other.flat.offset = offset;
      other.blocks = blocks;
      EXPECT_TRUE(run(other, numbers_for(other), ThreadOrder::kForward) == expected) << offset << ", " << blocks;
    }
  }
}

TEST(SgdKernel, WhatIsNotFiniteStaysWhereItIs) {
  const Case c{.count = 21, .flat = {.copy = Copy::kBfloat16}};
  const Numbers expected = run(c, numbers_for(c), ThreadOrder::kForward);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Numbers numbers = numbers_for(c);
    numbers.gradients[6] = bad;
    const Numbers result = run(c, numbers, ThreadOrder::kForward);
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      if (i == 6) {
        EXPECT_FALSE(std::isfinite(result.values[i])) << bad;
        EXPECT_FALSE(std::isfinite(result.momentum[i])) << bad;
      } else {
        EXPECT_EQ(result.values[i], expected.values[i]);
      }
    }
  }
}

TEST(SgdKernel, FoundInfStopsTheUpdate) {
  const Case c{.count = 300, .blocks = 2, .flat = {.copy = Copy::kFloat16, .found_inf = 1.0f}};
  Numbers numbers = numbers_for(c);
  numbers.gradients[0] = std::nanf("");
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kShuffled) == numbers);
}

}  // namespace
}  // namespace dtrain::test
