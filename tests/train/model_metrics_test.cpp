// What the metrics of `model:` experiments compute of batches of unequal sizes.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "worker/loss.h"

namespace dtrain::worker {
namespace {

// The value after these batches, as a validation of one rank has it.
double value_of(const std::string& word, const config::Loss& loss, const std::vector<LossInput>& batches) {
  const config::Metric metric = config::metric_named(word).value();
  const ModelMetric made = make_metric(metric);
  for (const LossInput& input : batches) {
    const ScoredTargets batch = scored_targets(loss, input).value();
    check_metric(metric, batch);
    made.add(batch);
  }
  if (const auto* summed = std::get_if<std::shared_ptr<SummedMetric>>(&made.metric))
    return (*summed)->compute((*summed)->take());
  const auto gathered = std::get<std::shared_ptr<GatheredMetric>>(made.metric);
  return gathered->compute(torch::cat(gathered->take()));
}

// Three classes; the second batch has two targets that do not count.
const config::CrossEntropy kIgnoring{.ignore_index = -1};

std::vector<LossInput> two_batches() {
  return {{torch::tensor({{3.0f, 1.0f, 0.0f}}), torch::tensor({0})},
          {torch::tensor({{0.0f, 2.0f, 1.0f}, {0.0f, 2.0f, 1.0f}, {9.0f, 0.0f, 0.0f}, {5.0f, 4.0f, 1.0f}}),
           torch::tensor({2, -1, -1, 1})}};
}

double cross_entropy(double a, double b, double c, double own) {
  return std::log(std::exp(a) + std::exp(b) + std::exp(c)) - own;
}

// As in torch: without ignore_index targets of -100 are ignored.
TEST(ModelMetrics, TargetsOfMinus100AreIgnoredByDefault) {
  const config::Loss loss = config::CrossEntropy();
  const at::Tensor target = torch::tensor({2, -100, -100, 1});
  LossInput input{two_batches()[1].output.clone().requires_grad_(true), target};
  const LossValues values = evaluate_loss(loss, input);
  EXPECT_TRUE(values.loss.equal(at::cross_entropy_loss(input.output, target)));
  EXPECT_FALSE(values.weight.has_value()) << "backward is that of torch";
  EXPECT_DOUBLE_EQ(values.metrics().at("loss").weight().value(), 2) << "of the samples";
  EXPECT_DOUBLE_EQ(values.accuracy.item<double>(), 0);
  std::vector<LossInput> batches = two_batches();
  batches[1].target = target;
  EXPECT_DOUBLE_EQ(value_of("top_2_accuracy", loss, batches), 1.0);

  input.target = torch::full({4}, -100);
  const at::Tensor none = evaluate_loss(loss, input).loss;
  none.backward();
  EXPECT_EQ(none.item<float>(), 0);
  EXPECT_TRUE(input.output.grad().eq(0).all().item<bool>());

  const auto refused = [&](const at::Tensor& targets, bool is_alone) -> std::string {
    try {
      LossInput one{input.output, targets};
      one.is_alone = is_alone;
      evaluate_loss(loss, one);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return "";
  };
  EXPECT_THAT(refused(target, false), testing::HasSubstr("set ignore_index: -100 in loss"));
  EXPECT_EQ(refused(torch::tensor({2, 0, 0, 1}), false), "");
  EXPECT_THAT(refused(torch::tensor({2, -100, -99, 1}), true), testing::HasSubstr("has class -99"));
  EXPECT_THAT(refused(torch::tensor({2, -101, -100, 1}), true), testing::HasSubstr("has class -101"));
}

TEST(ModelMetrics, AreOfTheTargetsThatCount) {
  // Predicted 0, 1, 0 for the targets 0, 2, 1.
  EXPECT_DOUBLE_EQ(value_of("top_2_accuracy", kIgnoring, two_batches()), 1.0);
  EXPECT_DOUBLE_EQ(value_of("f1", kIgnoring, two_batches()), (2.0 / 3 + 0 + 0) / 3);
  EXPECT_DOUBLE_EQ(value_of("iou", kIgnoring, two_batches()), (1.0 / 2 + 0 + 0) / 3);
  const double mean = (cross_entropy(3, 1, 0, 3) + cross_entropy(0, 2, 1, 1) + cross_entropy(5, 4, 1, 4)) / 3;
  EXPECT_NEAR(value_of("perplexity", kIgnoring, two_batches()), std::exp(mean), 1e-6);
}

TEST(ModelMetrics, LeaveOutClassesThatAreNowhere) {
  const std::vector<LossInput> batch{{torch::tensor({{3.0f, 1.0f, 0.0f}, {3.0f, 1.0f, 0.0f}}), torch::tensor({0, 1})}};
  EXPECT_DOUBLE_EQ(value_of("f1", config::CrossEntropy(), batch), (2.0 / 3 + 0) / 2);
  EXPECT_DOUBLE_EQ(value_of("iou", config::CrossEntropy(), batch), (1.0 / 2 + 0) / 2);
  const std::vector<LossInput> nothing{{torch::zeros({1, 3}), torch::tensor({-1})}};
  for (const char* word : {"f1", "iou", "perplexity", "top_2_accuracy"})
    EXPECT_TRUE(std::isnan(value_of(word, kIgnoring, nothing))) << word;
}

TEST(ModelMetrics, AreOfEachPixel) {
  const at::Tensor scores = torch::randn({2, 3, 4, 5});
  const at::Tensor target = torch::randint(0, 3, {2, 4, 5});
  const at::Tensor rows = scores.permute({0, 2, 3, 1}).reshape({-1, 3});
  const config::CrossEntropy last{.class_dimension = config::ClassDimension::kLast};
  for (const char* word : {"f1", "iou", "perplexity", "top_2_accuracy"}) {
    const double expected = value_of(word, config::CrossEntropy(), {{rows, target.flatten()}});
    EXPECT_DOUBLE_EQ(value_of(word, config::CrossEntropy(), {{scores, target}}), expected) << word;
    EXPECT_DOUBLE_EQ(value_of(word, last, {{scores.permute({0, 2, 3, 1}), target}}), expected) << word;
  }
}

TEST(ModelMetrics, AreOfEachLabel) {
  const std::vector<LossInput> batches{{torch::tensor({{1.0f, -1.0f}}), torch::tensor({{1.0f, 0.0f}})},
                                       {torch::tensor({{1.0f, 1.0f}, {-1.0f, 1.0f}}), torch::tensor({{0, 1}, {0, 1}})}};
  EXPECT_DOUBLE_EQ(value_of("f1", config::BinaryCrossEntropy(), batches), (2.0 / 3 + 1) / 2);
  EXPECT_DOUBLE_EQ(value_of("iou", config::BinaryCrossEntropy(), batches), (1.0 / 2 + 1) / 2);
  // One label for each sample, or for each pixel.
  const at::Tensor scores = torch::tensor({1.0f, 1.0f, -1.0f, 1.0f});
  const at::Tensor target = torch::tensor({1.0f, 0.0f, 1.0f, 1.0f});
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{4}, {4, 1}, {1, 1, 2, 2}}) {
    const std::vector<LossInput> batch{{scores.reshape(shape), target.reshape(shape)}};
    EXPECT_DOUBLE_EQ(value_of("f1", config::BinaryCrossEntropy(), batch), 4.0 / 6);
    EXPECT_DOUBLE_EQ(value_of("iou", config::BinaryCrossEntropy(), batch), 2.0 / 4);
  }
}

TEST(ModelMetrics, TheAreaUnderTheCurveIsOfTwoClassesOrOneLabel) {
  const std::vector<LossInput> labels{{torch::tensor({0.1f, 0.7f}), torch::tensor({0, 1})},
                                      {torch::tensor({0.7f}), torch::tensor({0})}};
  EXPECT_DOUBLE_EQ(value_of("auc", config::BinaryCrossEntropy(), labels), 0.75);
  const at::Tensor scores = torch::tensor({{1.0f, 1.1f}, {1.0f, 1.75f}, {0.25f, 1.0f}, {0.0f, 9.0f}});
  EXPECT_DOUBLE_EQ(value_of("auc", kIgnoring, {{scores, torch::tensor({0, 1, 0, -1})}}), 0.75);
}

TEST(ModelMetrics, SayWhatTheyCannotBeComputedOf) {
  const auto said = [](const std::string& word, const config::Loss& loss, const LossInput& input) -> std::string {
    try {
      check_metric(config::metric_named(word).value(), scored_targets(loss, input).value());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const LossInput classes{torch::zeros({2, 3}), torch::tensor({0, 1})};
  EXPECT_EQ(said("top_3_accuracy", config::CrossEntropy(), classes), "");
  EXPECT_EQ(said("top_5_accuracy", config::CrossEntropy(), classes),
            "metrics: top_5_accuracy needs at least 5 classes, the model's output has 3 classes");
  EXPECT_EQ(said("auc", config::CrossEntropy(), classes),
            "metrics: auc needs two classes, or one label, the model's output has 3 classes");
  EXPECT_EQ(said("auc", config::BinaryCrossEntropy(), {torch::zeros({2, 2}), torch::zeros({2, 2})}),
            "metrics: auc needs two classes, or one label, the model's output has 2 labels");
  EXPECT_FALSE(scored_targets(config::Loss(config::MeanSquaredError()), classes));
}

TEST(SummedMetric, RefusesAnotherShape) {
  F1 f1;
  f1.add_classes(torch::tensor({0}), torch::tensor({1}), 3);
  f1.add_classes(torch::tensor({2}), torch::tensor({2}), 3);
  EXPECT_THROW(f1.add_classes(torch::tensor({0}), torch::tensor({1}), 4), Error);
  EXPECT_TRUE(torch::equal(f1.take(), torch::tensor({{0, 0, 1}, {1, 0, 1}, {0, 1, 1}}, torch::kDouble)));
  EXPECT_FALSE(f1.take().defined());
}

}  // namespace
}  // namespace dtrain::worker
