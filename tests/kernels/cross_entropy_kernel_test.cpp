// The kernels of cross entropy against softmax and logarithm in float64.
#include "device/kernels/cross_entropy.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "guarded.h"

namespace dtrain::test {
namespace {

using train::cuda::CrossEntropyArguments;

constexpr std::int64_t kIgnored = -100;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Score>
struct Result {
  std::vector<float> losses;
  std::vector<Score> gradient;
  bool operator==(const Result& other) const {
    return same_bits(losses, other.losses) && same_bits(gradient, other.gradient);
  }
};

struct Case {
  std::int64_t rows = 1, classes = 1;
  int offset = 0, gradient_offset = 0, blocks = 1;
  float smoothing = 0;
};

template <class Score>
Result<Score> run(const Case& c, const std::vector<Score>& values, const std::vector<std::int64_t>& targets,
                  ThreadOrder order) {
  Guarded<Score> scores(values, c.offset), gradient(c.rows * c.classes, c.gradient_offset);
  Guarded<std::int64_t> target(targets, 0);
  Guarded<float> losses(c.rows, 0), sums(2 * c.rows, 0), of_losses(random_floats(c.rows, 3, 0.5, 1), 0);
  const CrossEntropyArguments<Score> arguments{.rows = c.rows,
                                               .classes = c.classes,
                                               .scores = scores.data(),
                                               .targets = target.data(),
                                               .ignored = kIgnored,
                                               .smoothing = c.smoothing,
                                               .losses = losses.data(),
                                               .sums = sums.data(),
                                               .of_losses = of_losses.data(),
                                               .gradient = gradient.data()};
  run_on_host<train::cuda::RowSums>([](auto& block, const auto& a) { train::cuda::cross_entropy(block, a); }, arguments,
                                    c.blocks, order);
  run_on_host<train::cuda::RowFactors>(
      [](auto& block, const auto& a) { train::cuda::cross_entropy_gradient(block, a); }, arguments, c.blocks, order);
  scores.expect_guards();
  gradient.expect_guards();
  losses.expect_guards();
  sums.expect_guards();
  return {losses.values(), gradient.values()};
}

template <class Score>
std::vector<Score> random_scores(std::int64_t count, double size) {
  std::vector<Score> scores(static_cast<std::size_t>(count));
  const std::vector<float> floats = random_floats(count, 11, -size, size);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = train::cuda::from_float<Score>(floats[i]);
  return scores;
}

std::vector<std::int64_t> some_targets(const Case& c) {
  std::vector<std::int64_t> targets;
  for (std::int64_t row = 0; row < c.rows; ++row) targets.push_back(row % 4 == 3 ? kIgnored : row * 7919 % c.classes);
  return targets;
}

template <class Score>
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.classes << " at offsets " << c.offset << " and "
                                  << c.gradient_offset << ", " << c.blocks << " blocks");
  const auto scores = random_scores<Score>(c.rows * c.classes, 20);
  const auto targets = some_targets(c);
  const auto of_losses = random_floats(c.rows, 3, 0.5, 1);
  const auto result = run(c, scores, targets, ThreadOrder::kForward);
  for (const ThreadOrder order : kOrders) EXPECT_TRUE(run(c, scores, targets, order) == result) << "a race";
  const double tolerance = std::is_same_v<Score, float> ? 1e-5 : 4e-3;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const auto score = [&](std::int64_t i) {
      return static_cast<double>(train::cuda::to_float(scores[static_cast<std::size_t>(row * c.classes + i)]));
    };
    const auto at = static_cast<std::size_t>(row);
    double sum = 0, plain = 0;
    for (std::int64_t i = 0; i < c.classes; ++i) sum += std::exp(score(i)), plain += score(i);
    const double smoothing = c.smoothing, classes = static_cast<double>(c.classes);
    const bool ignored = targets[at] == kIgnored;
    const double loss =
        ignored ? 0 : std::log(sum) - (1 - smoothing) * score(targets[at]) - smoothing * plain / classes;
    ASSERT_NEAR(result.losses[at], loss, 1e-5 * (1 + std::fabs(loss)));
    for (std::int64_t i = 0; i < c.classes; ++i) {
      const double of_score = std::exp(score(i)) / sum - smoothing / classes - (i == targets[at] ? 1 - smoothing : 0);
      const double expected = ignored ? 0 : of_score * of_losses[at];
      const double found = train::cuda::to_float(result.gradient[static_cast<std::size_t>(row * c.classes + i)]);
      ASSERT_NEAR(found, expected, 1e-6 + tolerance * std::fabs(expected)) << "class " << i;
    }
  }
}

TEST(CrossEntropyKernel, SizesAlignmentsAndBlocks) {
  for (const std::int64_t classes : {1, 2, 7, 8, 9, 255, 256, 1023, 2049, 5000}) {
    for (const int offset : {0, 1, 3}) {
      for (const int blocks : {1, 2}) {
        const Case c{.rows = 5, .classes = classes, .offset = offset, .gradient_offset = offset, .blocks = blocks};
        check<float>(c);
        check<std::uint16_t>(c);
      }
    }
  }
  check<std::uint16_t>({.rows = 1, .classes = 3001, .offset = 2, .gradient_offset = 1});
  check<float>({.rows = 9, .classes = 33, .blocks = 20});
}

TEST(CrossEntropyKernel, LabelSmoothing) {
  for (const float smoothing : {0.1f, 1.0f}) {
    check<float>({.rows = 3, .classes = 500, .smoothing = smoothing});
    check<std::uint16_t>({.rows = 3, .classes = 500, .smoothing = smoothing});
  }
}

TEST(CrossEntropyKernel, LargeScoresDoNotOverflow) {
  const Case c{.rows = 1, .classes = 3};
  const auto result = run<float>(c, {1e30f, -1e30f, 1e30f}, {0}, ThreadOrder::kForward);
  EXPECT_NEAR(result.losses[0], std::log(2.0), 1e-6);
}

// Padding of a vocabulary.
TEST(CrossEntropyKernel, ClassesOfNoProbability) {
  const Case c{.rows = 1, .classes = 600}, without{.rows = 1, .classes = 300};
  std::vector<float> scores = random_scores<float>(300, 3);
  const auto expected = run<float>(without, scores, {5}, ThreadOrder::kForward);
  scores.resize(600, -kInfinity);
  const auto result = run<float>(c, scores, {5}, ThreadOrder::kForward);
  EXPECT_NEAR(result.losses[0], expected.losses[0], 1e-5);
  for (std::size_t i = 300; i < 600; ++i) EXPECT_EQ(result.gradient[i], 0);
}

TEST(CrossEntropyKernel, WhatIsNotFiniteMakesItsRowNaN) {
  const Case c{.rows = 2, .classes = 300};
  const auto finite = run<float>(c, random_scores<float>(600, 3), {1, 2}, ThreadOrder::kForward);
  for (const float bad : {kInfinity, std::nanf("")}) {
    std::vector<float> scores = random_scores<float>(600, 3);
    scores[299] = bad;
    const auto result = run<float>(c, scores, {1, 2}, ThreadOrder::kForward);
    EXPECT_TRUE(std::isnan(result.losses[0]));
    EXPECT_EQ(result.losses[1], finite.losses[1]);
  }
  const auto nothing =
      run<float>({.rows = 1, .classes = 9}, std::vector<float>(9, std::nanf("")), {1}, ThreadOrder::kForward);
  EXPECT_TRUE(std::isnan(nothing.losses[0]));
}

TEST(CrossEntropyKernel, ATargetThatIsNoClassHasNoNumberForALoss) {
  const Case c{.rows = 3, .classes = 10};
  const auto result = run<float>(c, random_scores<float>(30, 3), {-1, 10, 4}, ThreadOrder::kForward);
  EXPECT_TRUE(std::isnan(result.losses[0]));
  EXPECT_TRUE(std::isnan(result.losses[1]));
  EXPECT_TRUE(std::isfinite(result.losses[2]));
}

}  // namespace
}  // namespace dtrain::test
