// The cross entropy of a `model:` experiment from hidden states and the last layer, in chunks, against that of the
// scores.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "model/precision.h"
#include "worker/loss.h"

namespace dtrain::worker {
namespace {

constexpr std::int64_t kFeatures = 5, kClasses = 19;

struct Batch {
  at::Tensor hidden, target;
  LastLayer layer;
};

Batch make_batch(const std::vector<std::int64_t>& rows, bool has_bias, std::int64_t classes = kClasses) {
  torch::manual_seed(11);
  std::vector<std::int64_t> shape = rows;
  shape.push_back(kFeatures);
  Batch batch{torch::randn(shape).requires_grad_(), torch::randint(0, classes, rows, at::kLong), {"head.weight"}};
  batch.layer.weight = torch::randn({classes, kFeatures}).requires_grad_();
  if (has_bias) batch.layer.bias = torch::randn({classes}).requires_grad_();
  return batch;
}

LossInput input_of(const Batch& batch, const at::Tensor& output) {
  return {output, batch.target, /*sequences=*/batch.target.dim() > 1};
}

struct Results {
  LossValues values;
  std::vector<at::Tensor> gradients;
};

Results with_gradients(const Batch& batch, const LossValues& values) {
  std::vector<at::Tensor> leaves{batch.hidden, batch.layer.weight};
  if (batch.layer.bias.defined()) leaves.push_back(batch.layer.bias);
  return {values, torch::autograd::grad({values.loss * 3}, leaves)};
}

Results whole(const config::CrossEntropy& loss, const Batch& batch) {
  const auto& bias = batch.layer.bias;
  const at::Tensor scores =
      at::linear(batch.hidden, batch.layer.weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
  return with_gradients(batch, evaluate_loss(config::Loss(loss), input_of(batch, scores)));
}

Results in_chunks(const config::CrossEntropy& loss, const Batch& batch) {
  const LossInput input = input_of(batch, batch.hidden);
  EXPECT_TRUE(fits_chunks(loss, input));
  return with_gradients(batch, evaluate_in_chunks(loss, input, batch.layer));
}

void expect_same(const Results& found, const Results& expected, double tolerance = 1e-5) {
  EXPECT_NEAR(found.values.loss.item<double>(), expected.values.loss.item<double>(), tolerance);
  ASSERT_EQ(found.values.accuracy.defined(), expected.values.accuracy.defined());
  if (found.values.accuracy.defined()) {
    EXPECT_DOUBLE_EQ(found.values.accuracy.item<double>(), expected.values.accuracy.item<double>());
  }
  EXPECT_EQ(found.values.weight, expected.values.weight);
  EXPECT_EQ(found.values.counted, expected.values.counted);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < found.gradients.size(); ++i) {
    EXPECT_TRUE(at::allclose(found.gradients[i], expected.gradients[i], tolerance, tolerance)) << "gradient " << i;
  }
}

TEST(ChunkedLoss, IsThatOfTheScores) {
  for (const bool has_bias : {false, true}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const auto& rows : {std::vector<std::int64_t>{7}, {3, 5}}) {
        SCOPED_TRACE(testing::Message() << (has_bias ? "bias, " : "") << "smoothing " << smoothing << ", "
                                        << rows.size() << " dimensions");
        const config::CrossEntropy loss{.label_smoothing = smoothing};
        const Batch batch = make_batch(rows, has_bias);
        expect_same(in_chunks(loss, batch), whole(loss, batch));
      }
    }
  }
}

TEST(ChunkedLoss, LeavesOutIgnoredTargets) {
  Batch batch = make_batch({4, 3}, /*has_bias=*/true);
  for (const std::int64_t ignored : {-100, 2}) {
    const config::CrossEntropy loss{.ignore_index = ignored};
    batch.target.select(0, 1).fill_(ignored);
    const Results found = in_chunks(loss, batch);
    expect_same(found, whole(loss, batch));
    EXPECT_GT(found.values.weight.value(), 0);
    const at::Tensor kept = batch.target.clone();
    batch.target.fill_(ignored);
    const Results none = in_chunks(loss, batch);
    expect_same(none, whole(loss, batch));
    EXPECT_EQ(none.values.loss.item<float>(), 0);
    EXPECT_EQ(none.values.weight, 0.0);
    batch.target = kept.clamp_min(0);
  }
}

TEST(ChunkedLoss, LeavesOutMinus100ByDefault) {
  const config::CrossEntropy loss;
  Batch batch = make_batch({4, 3}, /*has_bias=*/false);
  batch.target[2][1] = -100;
  const Results found = in_chunks(loss, batch);
  expect_same(found, whole(loss, batch));
  EXPECT_NEAR(found.values.counted.value(), 4 * 11.0 / 12, 1e-12);
  batch.target.fill_(-100);
  expect_same(in_chunks(loss, batch), whole(loss, batch));
  LossInput of_several = input_of(batch, batch.hidden);
  of_several.is_alone = false;
  EXPECT_THROW(evaluate_in_chunks(loss, of_several, batch.layer), ConfigError);
}

// 4,501 rows of 4,096 classes take 70 MiB: two chunks.
TEST(ChunkedLoss, GoesThroughChunks) {
  const config::CrossEntropy loss{.ignore_index = -100};
  Batch batch = make_batch({4501}, /*has_bias=*/true, kLeastClassesInChunks);
  batch.target.narrow(0, 4000, 300).fill_(-100);
  EXPECT_GT(bytes_of_scores(batch.hidden, batch.layer), least_bytes_in_chunks(batch.hidden, batch.layer));
  const Results found = in_chunks(loss, batch);
  const Results expected = whole(loss, batch);
  EXPECT_NEAR(found.values.accuracy.item<double>(), expected.values.accuracy.item<double>(), 1.0 / 4201);
  Results same = found;
  same.values.accuracy = expected.values.accuracy;  // two scores may be equal but for rounding
  expect_same(same, expected);
  const Results again = in_chunks(loss, batch);
  EXPECT_TRUE(found.values.loss.equal(again.values.loss));
  for (std::size_t i = 0; i < found.gradients.size(); ++i) EXPECT_TRUE(found.gradients[i].equal(again.gradients[i]));
}

TEST(ChunkedLoss, ComputesInTheTypeOfAutocast) {
  const config::CrossEntropy loss{.label_smoothing = 0.1};
  const Batch batch = make_batch({6, 7}, /*has_bias=*/true);
  const double in_float32 = bytes_of_scores(batch.hidden, batch.layer);
  const auto computed = [&](bool chunks) {
    const train::Autocast autocast(at::kBFloat16, at::kCPU);
    EXPECT_EQ(bytes_of_scores(batch.hidden, batch.layer), in_float32 / 2);
    const LossInput input = input_of(batch, batch.hidden);
    if (chunks) return evaluate_in_chunks(loss, input, batch.layer);
    return evaluate_loss(config::Loss(loss),
                         input_of(batch, at::linear(batch.hidden, batch.layer.weight, batch.layer.bias)));
  };
  Results found = with_gradients(batch, computed(true));
  const Results expected = with_gradients(batch, computed(false));
  EXPECT_EQ(found.values.loss.scalar_type(), at::kFloat);
  found.values.accuracy = expected.values.accuracy;
  expect_same(found, expected, 2e-2);
}

TEST(ChunkedLoss, FitsOneClassForEachRow) {
  const Batch batch = make_batch({4, 3}, /*has_bias=*/false);
  const auto fits = [&](const config::CrossEntropy& loss, const at::Tensor& target, bool sequences) {
    return fits_chunks(loss, {batch.hidden, target, sequences});
  };
  EXPECT_TRUE(fits({}, batch.target, true));
  EXPECT_TRUE(fits({.class_dimension = config::ClassDimension::kLast}, batch.target, false));
  EXPECT_FALSE(fits({}, batch.target, false)) << "the second dimension counts the classes";
  EXPECT_FALSE(fits({.class_weights = {1, 2}}, batch.target, true));
  EXPECT_FALSE(fits({}, batch.target.to(at::kFloat), true)) << "probabilities";
  EXPECT_FALSE(fits({}, batch.target.narrow(1, 0, 2), true));
  EXPECT_FALSE(fits({}, batch.target.narrow(0, 0, 0), true));
  EXPECT_FALSE(fits_chunks({}, input_of(batch, batch.hidden.to(at::kHalf)))) << "gradients need the scale of the loss";
}

TEST(ChunkedLoss, RefusesClassesThatTheLayerDoesNotHave) {
  Batch batch = make_batch({4}, /*has_bias=*/false);
  batch.target[1] = kClasses;
  try {
    evaluate_in_chunks({}, input_of(batch, batch.hidden), batch.layer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the target has class 19, the model's output 19 classes (0 to 18)");
  }
}

}  // namespace
}  // namespace dtrain::worker
