// The kernels of layer norm's and RMS norm's gradients against loops in float64.
#include "device/kernels/layer_norm.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "guarded.h"

namespace dtrain::test {
namespace {

using train::cuda::AddNormArguments;
using train::cuda::NormArguments;

struct Case {
  std::int64_t rows = 1, columns = 1;
  int offset = 0, gradient_offset = 0;
  bool rms = false, bias = true;
};

template <class Value, class Narrow>
struct Inputs {
  std::vector<Value> inputs, weight, added;
  std::vector<Narrow> of_results;
  std::vector<float> means, reciprocals;
};

template <class Value, class Narrow>
struct Result {
  std::vector<Value> gradient, of_weight, of_bias;
  std::vector<Narrow> copy;
  bool operator==(const Result& other) const {
    return same_bits(gradient, other.gradient) && same_bits(of_weight, other.of_weight) &&
           same_bits(of_bias, other.of_bias) && same_bits(copy, other.copy);
  }
};

template <class Value>
std::vector<Value> random_values(std::int64_t count, unsigned seed) {
  std::vector<Value> values;
  for (const float value : random_floats(count, seed, -2, 3)) {
    values.push_back(train::cuda::from_float<Value>(value));
  }
  return values;
}

template <class Value, class Narrow = Value>
Inputs<Value, Narrow> random_inputs(const Case& c) {
  Inputs<Value, Narrow> given{random_values<Value>(c.rows * c.columns, 5),
                              random_values<Value>(c.columns, 7),
                              random_values<Value>(c.rows * c.columns, 8),
                              random_values<Narrow>(c.rows * c.columns, 6),
                              {},
                              {}};
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const auto at = [&](std::int64_t i) {
      return static_cast<double>(train::cuda::to_float(given.inputs[static_cast<std::size_t>(row * c.columns + i)]));
    };
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < c.columns; ++i) sum += at(i);
    const double mean = c.rms ? 0 : sum / static_cast<double>(c.columns);
    for (std::int64_t i = 0; i < c.columns; ++i) squares += (at(i) - mean) * (at(i) - mean);
    given.means.push_back(static_cast<float>(mean));
    given.reciprocals.push_back(static_cast<float>(1 / std::sqrt(squares / static_cast<double>(c.columns) + 0.01)));
  }
  return given;
}

template <int packs, class Value, class Narrow, bool residual>
void run_first(const NormArguments<Value, Narrow, residual>& arguments, ThreadOrder order) {
  run_on_host<train::cuda::NormSums>([](auto& block, const auto& a) { train::cuda::norm_gradient<packs>(block, a); },
                                     arguments, train::cuda::blocks_of_norm(arguments.rows, arguments.columns), order);
}

// `residual`: the inputs have a gradient from elsewhere, and theirs is copied.
template <bool residual = false, class Value, class Narrow>
Result<Value, Narrow> run(const Case& c, const Inputs<Value, Narrow>& given, ThreadOrder order) {
  const std::int64_t parts = train::cuda::norm_parts(c.rows, c.columns);
  Guarded<Value> inputs(given.inputs, c.offset), weight(given.weight, c.offset), added(given.added, c.offset);
  Guarded<Narrow> of_results(given.of_results, c.offset), copy(c.rows * c.columns, c.gradient_offset);
  Guarded<float> means(given.means, 0), reciprocals(given.reciprocals, 0), sums(parts * 2 * c.columns, 0);
  Guarded<Value> gradient(c.rows * c.columns, c.gradient_offset), of_weight(c.columns, 0), of_bias(c.columns, 0);
  const NormArguments<Value, Narrow, residual> arguments{.rows = c.rows,
                                                         .columns = c.columns,
                                                         .inputs = inputs.data(),
                                                         .of_results = of_results.data(),
                                                         .weight = weight.data(),
                                                         .means = c.rms ? nullptr : means.data(),
                                                         .reciprocals = reciprocals.data(),
                                                         .gradient = gradient.data(),
                                                         .sums = sums.data(),
                                                         .added = residual ? added.data() : nullptr,
                                                         .copy = residual ? copy.data() : nullptr};
  switch (train::cuda::norm_packs(c.columns)) {
    case 1:
      run_first<1>(arguments, order);
      break;
    case 2:
      run_first<2>(arguments, order);
      break;
    default:
      run_first<4>(arguments, order);
  }
  run_on_host<train::cuda::ColumnSums>([](auto& block, const auto& a) { train::cuda::add_norm(block, a); },
                                       AddNormArguments<Value>{.sums = sums.data(),
                                                               .parts = parts,
                                                               .columns = c.columns,
                                                               .of_weight = of_weight.data(),
                                                               .of_bias = c.bias ? of_bias.data() : nullptr},
                                       train::cuda::blocks_of_add_norm(c.columns, c.bias), order);
  gradient.expect_guards();
  copy.expect_guards();
  sums.expect_guards();
  of_weight.expect_guards();
  of_bias.expect_guards();
  return {gradient.values(), of_weight.values(), of_bias.values(), copy.values()};
}

template <class Value, class Narrow = Value, bool residual = false>
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.columns << " at offsets " << c.offset << " and "
                                  << c.gradient_offset << (c.rms ? ", RMS" : "") << (c.bias ? "" : ", no bias")
                                  << (residual ? ", residual" : ""));
  const auto given = random_inputs<Value, Narrow>(c);
  const auto result = run<residual>(c, given, ThreadOrder::kForward);
  for (const ThreadOrder order : kOrders) EXPECT_TRUE(run<residual>(c, given, order) == result) << "a race";
  const double step = std::is_same_v<Value, float> ? 2e-6 : 1.0 / 256;
  const auto columns = static_cast<std::size_t>(c.columns);
  std::vector<double> of_weight(columns), of_bias(columns), sizes(columns);  // sizes: sums of what is added
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
    const auto normalized = [&](std::size_t i) {
      return (double{train::cuda::to_float(given.inputs[row * columns + i])} - double{given.means[row]}) *
             double{given.reciprocals[row]};
    };
    const auto of_result = [&](std::size_t i) {
      return double{train::cuda::to_float(given.of_results[row * columns + i])};
    };
    const auto weighted = [&](std::size_t i) { return of_result(i) * double{train::cuda::to_float(given.weight[i])}; };
    double mean = 0, with_input = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      mean += c.rms ? 0 : weighted(i) / static_cast<double>(columns);
      with_input += weighted(i) * normalized(i) / static_cast<double>(columns);
      of_weight[i] += of_result(i) * normalized(i);
      of_bias[i] += of_result(i);
      sizes[i] += std::fabs(of_result(i)) * (1 + std::fabs(normalized(i)));
    }
    for (std::size_t i = 0; i < columns; ++i) {
      const double added = residual ? double{train::cuda::to_float(given.added[row * columns + i])} : 0;
      const double expected =
          double{given.reciprocals[row]} * (weighted(i) - mean - normalized(i) * with_input) + added;
      const double size = double{given.reciprocals[row]} *
                              (std::fabs(weighted(i)) + std::fabs(mean) + std::fabs(normalized(i) * with_input) + 1) +
                          std::fabs(added);
      const double error = std::is_same_v<Value, float> ? step * size : step * std::fabs(expected) + 1e-5 * size;
      ASSERT_NEAR(train::cuda::to_float(result.gradient[row * columns + i]), expected, error)
          << "row " << row << ", column " << i;
      if (!residual) continue;
      ASSERT_NEAR(train::cuda::to_float(result.copy[row * columns + i]), expected,
                  std::fabs(expected) / 256 + 1e-5 * size)
          << "copy, row " << row << ", column " << i;
    }
  }
  for (std::size_t i = 0; i < columns; ++i) {
    const double exact = std::is_same_v<Value, float> ? 0 : step;
    ASSERT_NEAR(train::cuda::to_float(result.of_weight[i]), of_weight[i],
                exact * std::fabs(of_weight[i]) + 2e-6 * sizes[i]);
    if (!c.bias) continue;
    ASSERT_NEAR(train::cuda::to_float(result.of_bias[i]), of_bias[i], exact * std::fabs(of_bias[i]) + 2e-6 * sizes[i]);
  }
}

TEST(NormKernel, SizesAndAlignments) {
  for (const std::int64_t columns : {1, 3, 4, 63, 64, 255, 256, 260, 511, 512, 768, 1023, 1024}) {
    for (const int offset : {0, 1, 3}) {
      check<float>({.rows = 9, .columns = columns, .offset = offset, .gradient_offset = offset});
      check<std::uint16_t>({.rows = 9, .columns = columns, .offset = offset, .gradient_offset = offset});
    }
  }
  check<float>({.rows = 3, .columns = 64, .gradient_offset = 2});
}

TEST(NormKernel, SeveralPacksOfAThread) {
  for (const std::int64_t columns : {1025, 1028, 2047, 2048, 2049, 2052, 4095, 4096}) {
    check<float>({.rows = 5, .columns = columns});
    check<std::uint16_t>({.rows = 5, .columns = columns, .offset = 1});
  }
}

TEST(NormKernel, NumbersOfRows) {
  for (const std::int64_t rows : {1, 2, 15, 16, 17}) check<float>({.rows = rows, .columns = 8});
  check<float>({.rows = 4 * 256 * 4 + 7, .columns = 3});  // more than all blocks take at once
  check<float>({.rows = 260, .columns = 2052});
}

TEST(NormKernel, RmsNormAndNoBias) {
  for (const std::int64_t columns : {1, 96, 700, 1500}) {
    check<float>({.rows = 6, .columns = columns, .rms = true, .bias = false});
    check<std::uint16_t>({.rows = 6, .columns = columns, .rms = true, .bias = false});
  }
}

TEST(NormKernel, WithTheGradientOfASumAndACopy) {
  for (const std::int64_t columns : {1, 7, 64, 96, 130, 512, 1500, 4096}) {
    for (const int offset : {0, 1}) {
      const Case c{.rows = 9, .columns = columns, .offset = offset, .gradient_offset = offset};
      check<float, float, true>(c);
      check<std::uint16_t, std::uint16_t, true>(c);
      check<float, std::uint16_t, true>(c);
    }
  }
  check<float, std::uint16_t, true>({.rows = 7, .columns = 96, .rms = true, .bias = false});
}

// Where an array begins does not change the bits.
TEST(NormKernel, BitsDoNotDependOnTheAlignment) {
  const Case aligned{.rows = 40, .columns = 520},
      shifted{.rows = 40, .columns = 520, .offset = 1, .gradient_offset = 3};
  const auto given = random_inputs<float>(aligned);
  EXPECT_TRUE(run(aligned, given, ThreadOrder::kForward) == run(shifted, given, ThreadOrder::kForward));
}

TEST(NormKernel, WhatIsNotANumberStaysInItsRowAndInTheSums) {
  const Case c{.rows = 6, .columns = 130};
  auto given = random_inputs<float>(c);
  const auto finite = run(c, given, ThreadOrder::kForward);
  given.of_results[2 * 130 + 7] = std::numeric_limits<float>::quiet_NaN();
  const auto result = run(c, given, ThreadOrder::kForward);
  for (std::size_t i = 0; i < result.gradient.size(); ++i) {
    if (i / 130 == 2) {
      EXPECT_TRUE(std::isnan(result.gradient[i]));
    } else {
      EXPECT_EQ(result.gradient[i], finite.gradient[i]);
    }
  }
  for (std::size_t i = 0; i < 130; ++i) {
    EXPECT_EQ(std::isnan(result.of_weight[i]), i == 7);
    EXPECT_EQ(std::isnan(result.of_bias[i]), i == 7);
  }
}

}  // namespace
}  // namespace dtrain::test
