#include "step/checks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

TEST(SummedLoss, IsSeenInItsLastOperations) {
  use_own_operators();
  torch::manual_seed(1);
  const at::Tensor scores = torch::randn({6, 3}, torch::requires_grad());
  const at::Tensor images = torch::rand({6, 3, 2, 2}, torch::requires_grad());
  const at::Tensor classes = torch::randint(3, {6}), pixels = torch::randint(3, {6, 2, 2});
  const at::Tensor values = torch::rand({6, 3});
  const auto sum = at::Reduction::Sum;
  EXPECT_EQ(sum_over_samples(at::cross_entropy_loss(scores, classes, {}, sum)), "CrossEntropyLoss(reduction=\"sum\")");
  EXPECT_EQ(sum_over_samples(at::nll_loss(scores.log_softmax(1), classes, {}, sum)), "NllLoss(reduction=\"sum\")");
  EXPECT_EQ(sum_over_samples(at::cross_entropy_loss(images, pixels, {}, sum)), "NllLoss2D(reduction=\"sum\")");
  EXPECT_EQ(sum_over_samples(at::mse_loss(scores, values, sum).squeeze().to(at::kDouble)),
            "MseLoss(reduction=\"sum\")");
  EXPECT_EQ(sum_over_samples((scores - values).pow(2).sum()), "sum()");
  EXPECT_EQ(sum_over_samples(-scores.log_softmax(1).select(1, 0).sum(0)), "sum()");
  // As in PyTorch's example of a VAE.
  const at::Tensor divergence = -0.5 * (1 - scores.pow(2)).sum();
  EXPECT_EQ(sum_over_samples(at::binary_cross_entropy(scores.sigmoid(), values, {}, sum) + divergence),
            "BinaryCrossEntropy(reduction=\"sum\")");
}

TEST(SummedLoss, IsNotSeenInMeansAndInWhatIsNoSumOverSamples) {
  use_own_operators();
  const at::Tensor scores = torch::randn({6, 3}, torch::requires_grad());
  const at::Tensor classes = torch::randint(3, {6});
  const at::Tensor mean = at::cross_entropy_loss(scores, classes);
  EXPECT_EQ(sum_over_samples(mean), "");
  EXPECT_EQ(sum_over_samples(at::nll_loss(scores.log_softmax(1), classes)), "");
  EXPECT_EQ(sum_over_samples(at::cross_entropy_loss(scores, classes, {}, at::Reduction::Sum) / 6), "");
  EXPECT_EQ(sum_over_samples(scores.pow(2).sum(1).mean()), "");
  EXPECT_EQ(sum_over_samples(torch::stack({mean, 2 * mean}).sum()), "") << "the losses of two tasks";
  EXPECT_EQ(sum_over_samples(mean.sum()), "");
  EXPECT_EQ(sum_over_samples(mean + scores.pow(2).sum()), "") << "a penalty";
  EXPECT_EQ(sum_over_samples(torch::zeros({})), "");
}

}  // namespace
}  // namespace dtrain::train
