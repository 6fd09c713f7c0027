// The kernels of LAMB against the formulas in float64, and their sums against those of a CPU's tree.
#include "device/kernels/lamb.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "flat_arrays.h"

namespace dtrain::test {
namespace {

using train::cuda::kElementsOfLambPart;
using train::cuda::kElementsOfLine;
using train::cuda::LambArguments;

constexpr double kRate = 0.01, kNumber = 3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-6;

struct Case {
  std::vector<std::int64_t> sizes;  // of the parameters
  int blocks = 1;
  double weight_decay = 0.01;
  FlatCase flat{};

  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes) sum += size;
    return sum;
  }
};

struct Numbers {
  std::vector<float> values, gradients, average, square;
};

Numbers numbers_for(const Case& c) {
  return {random_floats(c.count(), 1), random_gradients(c.count(), 2, c.flat.narrow_gradients),
          random_floats(c.count(), 3, -0.1, 0.1), random_floats(c.count(), 4, 0.001, 0.1)};
}

struct Result {
  std::vector<float> values, average, square;
  std::vector<double> sums, trusts;
  bool operator==(const Result& other) const {
    return same_bits(values, other.values) && same_bits(average, other.average) && same_bits(square, other.square) &&
           same_bits(sums, other.sums) && same_bits(trusts, other.trusts);
  }
};

Result run(const Case& c, const Numbers& numbers, ThreadOrder order) {
  FlatArrays flat(c.flat, numbers.values, numbers.gradients);
  Guarded<float> average(numbers.average, c.flat.offset), square(numbers.square, c.flat.offset);
  const auto arguments = std::make_unique<LambArguments>();
  arguments->flat = flat.arguments(kNumber, kRate);
  arguments->average = average.data();
  arguments->square = square.data();
  arguments->beta1 = kBeta1;
  arguments->beta2 = kBeta2;
  arguments->eps = kEps;
  arguments->weight_decay = c.weight_decay;
  std::int64_t end = 0;
  for (const std::int64_t size : c.sizes) add_lamb_parameter(*arguments, end += size);
  Guarded<double> sums(2 * parts_of_lamb(*arguments), 0), trusts(arguments->parameters, 0);
  arguments->sums = sums.data();
  arguments->trusts = trusts.data();
  run_on_host<train::cuda::LambSums>([](auto& block, const auto& a) { train::cuda::direct_lamb(block, a); }, *arguments,
                                     c.blocks, order);
  run_on_host<train::cuda::LambNorms>([](auto& block, const auto& a) { train::cuda::trust_lamb(block, a); }, *arguments,
                                      arguments->parameters, order);
  run_on_host<train::cuda::LambFactors>([](auto& block, const auto& a) { train::cuda::move_lamb(block, a); },
                                        *arguments, c.blocks, order);
  flat.expect_guards();
  for (const Guarded<float>* const guarded : {&average, &square}) guarded->expect_guards();
  for (const Guarded<double>* const guarded : {&sums, &trusts}) guarded->expect_guards();
  return {flat.values(), average.values(), square.values(), sums.values(), trusts.values()};
}

// Algorithm 2 of arXiv:1904.00962.
void expect_formulas(const Case& c, const Numbers& before, const Result& after) {
  const double number = c.flat.number.value_or(kNumber);
  const double rate = c.flat.rate ? static_cast<double>(*c.flat.rate) : kRate;
  std::size_t begin = 0;
  for (std::size_t p = 0; p < c.sizes.size(); ++p) {
    const std::size_t end = begin + static_cast<std::size_t>(c.sizes[p]);
    std::vector<double> directions;
    double of_values = 0, of_directions = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const double value = before.values[i], gradient = before.gradients[i] / c.flat.divisor.value_or(1);
      const double average = kBeta1 * before.average[i] + (1 - kBeta1) * gradient;
      const double square = kBeta2 * before.square[i] + (1 - kBeta2) * gradient * gradient;
      ASSERT_NEAR(after.average[i], average, 1e-6) << i;
      ASSERT_NEAR(after.square[i], square, 1e-6) << i;
      const double divisor = std::sqrt(square / (1 - std::pow(kBeta2, number))) + kEps;
      const double direction = average / (1 - std::pow(kBeta1, number)) / divisor + c.weight_decay * value;
      directions.push_back(direction);
      of_values += value * value;
      of_directions += direction * direction;
    }
    const double trust = of_values == 0 || of_directions == 0 ? 1 : std::sqrt(of_values / of_directions);
    ASSERT_NEAR(after.trusts[p], trust, 1e-5 * trust) << p;
    for (std::size_t i = begin; i < end; ++i) {
      const double step = rate * trust * directions[i - begin];
      ASSERT_NEAR(after.values[i], before.values[i] - step, 1e-6 + 1e-5 * std::fabs(step)) << i;
    }
    begin = end;
  }
}

// The sum of squares as model/gradient_norm.h has it for a CPU.
double tree_of(const std::vector<double>& sums, std::size_t begin, std::size_t size) {
  if (begin >= sums.size()) return 0;
  if (size == 1) return sums[begin];
  return tree_of(sums, begin, size / 2) + tree_of(sums, begin + size / 2, size / 2);
}
double tree_of(const std::vector<double>& sums) {
  std::size_t size = 1;
  while (size < sums.size()) size *= 2;
  return tree_of(sums, 0, size);
}
double tree_of_squares(const float* data, std::int64_t count) {
  std::vector<double> lines;
  for (std::int64_t begin = 0; begin < count; begin += kElementsOfLine) {
    double squares[kElementsOfLine] = {};
    for (std::int64_t i = begin; i < count && i < begin + kElementsOfLine; ++i) {
      squares[i - begin] = static_cast<double>(data[i]) * data[i];
    }
    for (int width = kElementsOfLine / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) squares[i] += squares[i + width];
    }
    lines.push_back(squares[0]);
  }
  return tree_of(lines);
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.sizes.size() << " parameters at offset " << c.flat.offset << ", " << c.blocks
                                  << " blocks");
  const Numbers numbers = numbers_for(c);
  const Result forward = run(c, numbers, ThreadOrder::kForward);
  expect_formulas(c, numbers, forward);
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kBackward) == forward) << "a race";
  EXPECT_TRUE(run(c, numbers, ThreadOrder::kShuffled) == forward) << "a race";
  std::size_t part = 0;
  const float* data = numbers.values.data();
  for (const std::int64_t size : c.sizes) {
    for (std::int64_t begin = 0; begin < size; begin += kElementsOfLambPart, ++part) {
      const std::int64_t elements = std::min<std::int64_t>(kElementsOfLambPart, size - begin);
      EXPECT_EQ(forward.sums[2 * part], tree_of_squares(data + begin, elements)) << part;
    }
    data += size;
  }
}

TEST(LambKernel, SizesAlignmentsAndBlocks) {
  const std::vector<std::vector<std::int64_t>> all_sizes{{1}, {3}, {16}, {100}, {4095}, {4096}, {4097}, {9001}};
  for (const auto& sizes : all_sizes) {
    for (const int offset : {0, 1, 2, 4}) {
      for (const int blocks : {1, 3}) check({.sizes = sizes, .blocks = blocks, .flat = {.offset = offset}});
    }
  }
}

TEST(LambKernel, SeveralParametersEndInTheMiddleOfAPart) {
  for (const int offset : {0, 3}) {
    check({.sizes = {768, 16, 4096, 5008, 48}, .blocks = 2, .flat = {.offset = offset, .copy = Copy::kBfloat16}});
    check({.sizes = {1, 5, 4097, 2, 8195, 16}, .blocks = 2, .flat = {.offset = offset, .copy = Copy::kFloat16}});
  }
  std::vector<std::int64_t> most(LambArguments::kMost);
  for (std::size_t i = 0; i < most.size(); ++i) most[i] = static_cast<std::int64_t>(1 + i % 40);
  check({.sizes = most, .blocks = 3});
}

TEST(LambKernel, EachFormOfTheArguments) {
  for (const double decay : {0.0, 0.1}) {
    for (const bool narrow : {false, true}) {
      for (const Copy copy : {Copy::kNone, Copy::kBfloat16, Copy::kFloat16}) {
        check({.sizes = {77, 32}, .weight_decay = decay, .flat = {.narrow_gradients = narrow, .copy = copy}});
      }
    }
  }
  check({.sizes = {70}, .flat = {.number = 100.0f, .rate = 0.5f}});
  check({.sizes = {70}, .flat = {.divisor = 4.0f, .found_inf = 0.0f}});
}

TEST(LambKernel, TheBitsDependNeitherOnAlignmentNorOnOtherParameters) {
  const Case all{.sizes = {100, 5000, 33}};
  const Numbers numbers = numbers_for(all);
  const Result expected = run(all, numbers, ThreadOrder::kForward);
  std::int64_t begin = 0;
  for (std::size_t p = 0; p < all.sizes.size(); ++p) {
    const auto part = [&](const std::vector<float>& of) {
      return std::vector<float>(of.begin() + begin, of.begin() + begin + all.sizes[p]);
    };
    for (const int offset : {0, 1}) {
      const Case alone{.sizes = {all.sizes[p]}, .blocks = 2, .flat = {.offset = offset}};
      const Result result =
          run(alone, {part(numbers.values), part(numbers.gradients), part(numbers.average), part(numbers.square)},
              ThreadOrder::kForward);
      EXPECT_EQ(result.trusts[0], expected.trusts[p]);
      EXPECT_TRUE(same_bits(result.values, part(expected.values)));
    }
    begin += all.sizes[p];
  }
}

TEST(LambKernel, SumsOfPartsAreAddedAlongTheTree) {
  for (const int parts : {1, 2, 3, 255, 256, 257, 600, 1500}) {
    const auto arguments = std::make_unique<LambArguments>();
    add_lamb_parameter(*arguments, kElementsOfLambPart);
    add_lamb_parameter(*arguments, static_cast<std::int64_t>(1 + parts) * kElementsOfLambPart);
    std::vector<double> sums(static_cast<std::size_t>(2 * parts + 2)), of_values, of_directions;
    std::minstd_rand random(5);
    for (double& sum : sums) sum = static_cast<double>(random()) / std::minstd_rand::max();
    for (std::size_t i = 2; i < sums.size(); i += 2) {
      of_values.push_back(sums[i]);
      of_directions.push_back(sums[i + 1]);
    }
    Guarded<double> given(sums, 0), trusts(2, 0);
    arguments->sums = given.data();
    arguments->trusts = trusts.data();
    for (const ThreadOrder order : kOrders) {
      run_on_host<train::cuda::LambNorms>([](auto& block, const auto& a) { train::cuda::trust_lamb(block, a); },
                                          *arguments, 2, order);
      EXPECT_EQ(trusts.data()[1], std::sqrt(tree_of(of_values)) / std::sqrt(tree_of(of_directions))) << parts;
    }
    trusts.expect_guards();
  }
}

TEST(LambKernel, TheFactorIsOneIfANormIsZero) {
  const Case c{.sizes = {20, 20, 20}, .weight_decay = 0};
  Numbers numbers = numbers_for(c);
  for (std::size_t i = 0; i < 20; ++i) {
    numbers.values[i] = 0;
    numbers.gradients[20 + i] = numbers.average[20 + i] = numbers.square[20 + i] = 0;
  }
  const Result result = run(c, numbers, ThreadOrder::kForward);
  EXPECT_EQ(result.trusts[0], 1);
  EXPECT_EQ(result.trusts[1], 1);
  EXPECT_NE(result.trusts[2], 1);
  expect_formulas(c, numbers, result);
}

TEST(LambKernel, WhatIsNotFiniteStaysInItsParameter) {
  const Case c{.sizes = {30, 40, 50}};
  const Result expected = run(c, numbers_for(c), ThreadOrder::kForward);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Numbers numbers = numbers_for(c);
    numbers.gradients[33] = bad;
    const Result result = run(c, numbers, ThreadOrder::kForward);
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      if (i < 30 || i >= 70) {
        EXPECT_EQ(result.values[i], expected.values[i]);
      } else {
        EXPECT_TRUE(std::isnan(result.values[i])) << i;
      }
    }
  }
}

TEST(LambKernel, FoundInfStopsTheUpdate) {
  const Case c{.sizes = {300, 20}, .blocks = 2, .flat = {.copy = Copy::kFloat16, .found_inf = 1.0f}};
  Numbers numbers = numbers_for(c);
  numbers.gradients[0] = std::nanf("");
  const Result result = run(c, numbers, ThreadOrder::kShuffled);
  EXPECT_TRUE(same_bits(result.values, numbers.values));
  EXPECT_TRUE(same_bits(result.average, numbers.average));
  EXPECT_TRUE(same_bits(result.square, numbers.square));
}

}  // namespace
}  // namespace dtrain::test
