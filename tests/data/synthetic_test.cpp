// Generated data: a function of (seed, index), the same for every part of the sequence, and learnable.
#include "dtrain/data/data_sets.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

struct Samples {
  std::vector<float> features;
  std::vector<std::int64_t> labels;
  std::vector<float> targets;
};

Samples read_all(const Dataset& dataset) {
  const auto size = static_cast<std::size_t>(dataset.size());
  std::vector<std::int64_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  Samples samples;
  samples.features.resize(size * dataset.fields()[0].bytes() / sizeof(float));
  const bool classes = dataset.fields()[1].type == ElementType::kInt64;
  std::vector<std::byte> answers(size * dataset.fields()[1].bytes());
  dataset.read(all, std::vector<std::byte*>{reinterpret_cast<std::byte*>(samples.features.data()), answers.data()});
  if (classes) {
    samples.labels.resize(size);
    std::memcpy(samples.labels.data(), answers.data(), answers.size());
  } else {
    samples.targets.resize(answers.size() / sizeof(float));
    std::memcpy(samples.targets.data(), answers.data(), answers.size());
  }
  return samples;
}

TEST(Synthetic, FieldsOfClassification) {
  const auto dataset = make_synthetic({.samples = 5, .features = 3, .classes = 4});
  EXPECT_EQ(dataset->size(), 5);
  EXPECT_EQ(dataset->fields()[0].name, "features");
  EXPECT_EQ(dataset->fields()[0].type, ElementType::kFloat32);
  EXPECT_EQ(dataset->fields()[0].shape, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(dataset->fields()[1].name, "label");
  EXPECT_EQ(dataset->fields()[1].type, ElementType::kInt64);
  EXPECT_TRUE(dataset->fields()[1].shape.empty());
}

TEST(Synthetic, SameSeedSameBitsOtherSeedOthers) {
  const auto first = read_all(*make_synthetic({.samples = 50, .seed = 3}));
  const auto again = read_all(*make_synthetic({.samples = 50, .seed = 3}));
  const auto other = read_all(*make_synthetic({.samples = 50, .seed = 4}));
  EXPECT_EQ(first.features, again.features);
  EXPECT_EQ(first.labels, again.labels);
  EXPECT_NE(first.features, other.features);
}

TEST(Synthetic, ALaterPartOfTheSequenceIsTheSameSequence) {
  for (const std::int64_t classes : {0, 10}) {
    const auto whole = read_all(*make_synthetic({.samples = 30, .features = 4, .classes = classes, .targets = 2}));
    const auto part =
        read_all(*make_synthetic({.samples = 10, .first = 20, .features = 4, .classes = classes, .targets = 2}));
    EXPECT_EQ(part.features, std::vector<float>(whole.features.begin() + 20 * 4, whole.features.end()));
    EXPECT_EQ(part.labels, std::vector<std::int64_t>(whole.labels.end() - (classes > 0 ? 10 : 0), whole.labels.end()));
    EXPECT_EQ(part.targets, std::vector<float>(whole.targets.end() - (classes > 0 ? 0 : 20), whole.targets.end()));
  }
}

// Runs that compare figures over months need the same data: this pins the first numbers.
TEST(Synthetic, KnownFirstSample) {
  const auto samples = read_all(*make_synthetic({.samples = 4, .features = 3, .classes = 10, .seed = 1}));
  EXPECT_EQ(samples.labels, (std::vector<std::int64_t>{7, 3, 6, 5}));
  EXPECT_EQ(std::vector<float>(samples.features.begin(), samples.features.begin() + 3),
            (std::vector<float>{-0x1.8fa7ap-3f, 0x1.3eb0ap+0f, 0x1.2c096cp-1f}));
}

TEST(Synthetic, ClassesAreEvenAndNearestCentreFindsMost) {
  constexpr std::int64_t kWidth = 32, kClasses = 10;
  const auto training = read_all(*make_synthetic({.samples = 5'000}));
  const auto held_out = read_all(*make_synthetic({.samples = 1'000, .first = 5'000}));
  std::vector<double> centres(kClasses * kWidth);
  std::vector<std::int64_t> counts(kClasses);
  for (std::size_t i = 0; i < training.labels.size(); ++i) {
    const auto label = static_cast<std::size_t>(training.labels[i]);
    ++counts.at(label);
    for (std::size_t j = 0; j < kWidth; ++j) centres[label * kWidth + j] += training.features[i * kWidth + j];
  }
  for (std::size_t c = 0; c < kClasses; ++c) {
    EXPECT_NEAR(static_cast<double>(counts[c]), 500, 100);
    for (std::size_t j = 0; j < kWidth; ++j) centres[c * kWidth + j] /= static_cast<double>(counts[c]);
  }
  int right = 0;
  for (std::size_t i = 0; i < held_out.labels.size(); ++i) {
    std::int64_t best = 0;
    double best_distance = 1e300;
    for (std::size_t c = 0; c < kClasses; ++c) {
      double distance = 0;
      for (std::size_t j = 0; j < kWidth; ++j) {
        distance += std::pow(centres[c * kWidth + j] - held_out.features[i * kWidth + j], 2);
      }
      if (distance < best_distance) {
        best_distance = distance;
        best = static_cast<std::int64_t>(c);
      }
    }
    right += best == held_out.labels[i] ? 1 : 0;
  }
  EXPECT_GT(right, 900);
}

TEST(Synthetic, RegressionTargetsAreLinearAndOfUnitScale) {
  const auto dataset = make_synthetic({.samples = 4'000, .features = 64, .classes = 0, .targets = 3});
  EXPECT_EQ(dataset->fields()[1].name, "target");
  EXPECT_EQ(dataset->fields()[1].shape, (std::vector<std::int64_t>{3}));
  const auto samples = read_all(*dataset);
  double squares = 0;
  for (const auto value : samples.targets) squares += value * value;
  const double variance = squares / static_cast<double>(samples.targets.size());
  EXPECT_GT(variance, 0.5);
  EXPECT_LT(variance, 2.0);
  // Uncorrelated features of variance 1/3: the least-squares weight j of target 0 is 3 E[x_j y]; with it the residual
  // must nearly vanish.
  std::vector<double> weights(64);
  for (std::size_t i = 0; i < 4'000; ++i) {
    for (std::size_t j = 0; j < 64; ++j)
      weights[j] += 3.0 * samples.features[i * 64 + j] * samples.targets[i * 3] / 4e3;
  }
  double residual = 0, total = 0;
  for (std::size_t i = 0; i < 4'000; ++i) {
    double guess = 0;
    for (std::size_t j = 0; j < 64; ++j) guess += weights[j] * samples.features[i * 64 + j];
    residual += std::pow(guess - samples.targets[i * 3], 2);
    total += std::pow(samples.targets[i * 3], 2);
  }
  EXPECT_LT(residual / total, 0.05);
}

TEST(Synthetic, OptionsThatMakeNoSense) {
  EXPECT_THROW(make_synthetic({.samples = 0}), DataError);
  EXPECT_THROW(make_synthetic({.first = -1}), DataError);
  EXPECT_THROW(make_synthetic({.features = 0}), DataError);
  EXPECT_THROW(make_synthetic({.classes = 0, .targets = 0}), DataError);
  try {
    make_synthetic({.classes = 1});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("classes is 1"));
  }
}

}  // namespace
}  // namespace dtrain::data
