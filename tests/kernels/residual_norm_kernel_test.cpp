// The kernel of a sum with a residual and its norm, against loops in float64.
#include "device/kernels/residual_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "guarded.h"

namespace dtrain::test {
namespace {

using train::cuda::from_float;
using train::cuda::ResidualNormArguments;
using train::cuda::to_float;

constexpr float kEps = 1e-3f;

struct Case {
  std::int64_t rows = 1, columns = 1;
  int offset = 0, result_offset = 0;
  bool rms = false, bias = true;
  bool even = false;  // all values of a row are the same
};

template <class Value, class Narrow>
struct Inputs {
  std::vector<Value> residual, weight, bias;
  std::vector<Narrow> inputs;
};

template <class Value, class Narrow>
struct Result {
  std::vector<Value> sums;
  std::vector<Narrow> results;
  std::vector<float> means, reciprocals;
  bool operator==(const Result& other) const {
    return same_bits(sums, other.sums) && same_bits(results, other.results) && same_bits(means, other.means) &&
           same_bits(reciprocals, other.reciprocals);
  }
};

template <class Value>
std::vector<Value> random_values(std::int64_t count, unsigned seed) {
  std::vector<Value> values;
  for (const float value : random_floats(count, seed, -2, 3)) values.push_back(from_float<Value>(value));
  return values;
}

template <class Value, class Narrow = Value>
Inputs<Value, Narrow> random_inputs(const Case& c) {
  Inputs<Value, Narrow> given{random_values<Value>(c.rows * c.columns, 5), random_values<Value>(c.columns, 6),
                              random_values<Value>(c.columns, 7), random_values<Narrow>(c.rows * c.columns, 8)};
  if (c.even) {
    std::fill(given.residual.begin(), given.residual.end(), from_float<Value>(2));
    std::fill(given.inputs.begin(), given.inputs.end(), from_float<Narrow>(1));
  }
  return given;
}

template <int packs, class Value, class Narrow>
void run_kernel(const ResidualNormArguments<Value, Narrow>& arguments, ThreadOrder order) {
  run_on_host<train::cuda::NormSums>([](auto& block, const auto& a) { train::cuda::residual_norm<packs>(block, a); },
                                     arguments, train::cuda::blocks_of_norm(arguments.rows, arguments.columns), order);
}

template <class Value, class Narrow>
Result<Value, Narrow> run(const Case& c, const Inputs<Value, Narrow>& given, ThreadOrder order) {
  Guarded<Value> residual(given.residual, c.offset), weight(given.weight, 0), bias(given.bias, 0);
  Guarded<Narrow> inputs(given.inputs, 0), results(c.rows * c.columns, c.result_offset);
  Guarded<Value> sums(c.rows * c.columns, c.result_offset);
  Guarded<float> means(c.rms ? 0 : c.rows, 0), reciprocals(c.rows, 0);
  const ResidualNormArguments<Value, Narrow> arguments{.rows = c.rows,
                                                       .columns = c.columns,
                                                       .residual = residual.data(),
                                                       .inputs = inputs.data(),
                                                       .weight = weight.data(),
                                                       .bias = c.bias ? bias.data() : nullptr,
                                                       .eps = kEps,
                                                       .sums = sums.data(),
                                                       .results = results.data(),
                                                       .means = c.rms ? nullptr : means.data(),
                                                       .reciprocals = reciprocals.data()};
  switch (train::cuda::norm_packs(c.columns)) {
    case 1:
      run_kernel<1>(arguments, order);
      break;
    case 2:
      run_kernel<2>(arguments, order);
      break;
    default:
      run_kernel<4>(arguments, order);
  }
  sums.expect_guards();
  results.expect_guards();
  means.expect_guards();
  reciprocals.expect_guards();
  return {sums.values(), results.values(), means.values(), reciprocals.values()};
}

template <class Value, class Narrow = Value>
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.columns << " at offsets " << c.offset << " and "
                                  << c.result_offset << (c.rms ? ", RMS" : "") << (c.bias ? "" : ", no bias"));
  const auto given = random_inputs<Value, Narrow>(c);
  const auto result = run(c, given, ThreadOrder::kForward);
  for (const ThreadOrder order : kOrders) EXPECT_TRUE(run(c, given, order) == result) << "a race";
  const auto columns = static_cast<std::size_t>(c.columns);
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
    double mean = 0, squares = 0, size = 0;
    const auto sum_at = [&](std::size_t i) { return double{to_float(result.sums[row * columns + i])}; };
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t at = row * columns + i;
      const float sum = to_float(given.residual[at]) + to_float(given.inputs[at]);
      ASSERT_EQ(to_float(result.sums[at]), to_float(from_float<Value>(sum))) << "row " << row << ", column " << i;
      mean += c.rms ? 0 : sum_at(i) / static_cast<double>(columns);
      size += std::fabs(sum_at(i)) / static_cast<double>(columns);
    }
    for (std::size_t i = 0; i < columns; ++i) squares += (sum_at(i) - mean) * (sum_at(i) - mean);
    const double reciprocal = 1 / std::sqrt(squares / static_cast<double>(columns) + double{kEps});
    if (!c.rms) {
      ASSERT_NEAR(result.means[row], mean, 3e-6 * size);
    }
    ASSERT_NEAR(result.reciprocals[row], reciprocal, 1e-5 * reciprocal);
    for (std::size_t i = 0; i < columns; ++i) {
      const double normalized = (sum_at(i) - mean) * reciprocal, weight = double{to_float(given.weight[i])};
      const double bias = c.bias ? double{to_float(given.bias[i])} : 0;
      const double expected = normalized * weight + bias;
      const double rounding = std::is_same_v<Narrow, float> ? 0 : std::fabs(expected) / 256;
      ASSERT_NEAR(to_float(result.results[row * columns + i]), expected,
                  rounding + 2e-5 * (std::fabs(normalized * weight) + std::fabs(bias) + size * reciprocal))
          << "row " << row << ", column " << i;
    }
  }
}

TEST(ResidualNormKernel, SizesAndAlignments) {
  for (const std::int64_t columns :
       {1, 3, 4, 63, 64, 255, 256, 260, 511, 512, 768, 1023, 1024, 1025, 2048, 2052, 4096}) {
    for (const int offset : {0, 1, 3}) {
      const Case c{.rows = 9, .columns = columns, .offset = offset, .result_offset = offset};
      check<float>(c);
      check<std::uint16_t>(c);
      check<float, std::uint16_t>(c);
    }
  }
  check<float>({.rows = 3, .columns = 64, .offset = 1});
  check<float, std::uint16_t>({.rows = 3, .columns = 64, .result_offset = 2});
}

TEST(ResidualNormKernel, NumbersOfRows) {
  for (const std::int64_t rows : {1, 2, 15, 16, 17}) check<float>({.rows = rows, .columns = 8});
  check<float>({.rows = 4 * 256 * 4 + 7, .columns = 3});  // more than all blocks take at once
  check<float>({.rows = 260, .columns = 2052});
}

TEST(ResidualNormKernel, RmsNormAndNoBias) {
  for (const std::int64_t columns : {1, 96, 700, 1500}) {
    check<float>({.rows = 6, .columns = columns, .rms = true, .bias = false});
    check<std::uint16_t>({.rows = 6, .columns = columns, .rms = true, .bias = false});
    check<float, std::uint16_t>({.rows = 6, .columns = columns, .bias = false});
  }
}

TEST(ResidualNormKernel, ARowWithoutDeviation) {
  for (const std::int64_t columns : {64, 70}) check<float>({.rows = 3, .columns = columns, .even = true});
}

// Where an array begins does not change the bits.
TEST(ResidualNormKernel, BitsDoNotDependOnTheAlignment) {
  const Case aligned{.rows = 40, .columns = 520}, shifted{.rows = 40, .columns = 520, .offset = 1, .result_offset = 3};
  const auto given = random_inputs<float>(aligned);
  EXPECT_TRUE(run(aligned, given, ThreadOrder::kForward) == run(shifted, given, ThreadOrder::kForward));
}

TEST(ResidualNormKernel, WhatIsNotANumberStaysInItsRow) {
  const Case c{.rows = 6, .columns = 130};
  auto given = random_inputs<float>(c);
  given.inputs[2 * 130 + 7] = std::numeric_limits<float>::quiet_NaN();
  const auto result = run(c, given, ThreadOrder::kForward);
  for (std::size_t i = 0; i < result.results.size(); ++i) EXPECT_EQ(std::isnan(result.results[i]), i / 130 == 2);
}

}  // namespace
}  // namespace dtrain::test
