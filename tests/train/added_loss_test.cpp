// What adding a loss takes: a struct with its word, its keys and evaluate(), and a place in the list. This one is in no
// list but the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "worker/loss.h"

namespace dtrain::worker {
namespace {

struct MeanAbsoluteError {
  static constexpr const char* kWord = "mae";
  static constexpr bool kTakesSequences = false;
  template <class Keys>
  void declare_keys(Keys&) {}
  LossValues evaluate(const LossInput& input) const {
    if (input.output.sizes() != input.target.sizes()) refuse_shapes(input, "mae needs an output of the target's shape");
    return {at::l1_loss(input.output, input.target), {}};
  }
  bool operator==(const MeanAbsoluteError&) const = default;
};

using WithMae = std::variant<config::CrossEntropy, config::MeanSquaredError, MeanAbsoluteError>;

TEST(AddedLoss, IsNamedByItsWord) {
  EXPECT_THAT(dtrain::words_of<WithMae>(), testing::ElementsAre("cross_entropy", "mse", "mae"));
  EXPECT_TRUE(std::holds_alternative<MeanAbsoluteError>(choice_named<WithMae>("mae")));
}

TEST(AddedLoss, IsEvaluated) {
  const at::Tensor output = torch::tensor({1.0f, 2.0f, 3.0f, 5.0f}).reshape({2, 2}).requires_grad_(true);
  const at::Tensor target = torch::tensor({2.0f, 2.0f, 1.0f, 9.0f}).reshape({2, 2});
  const LossValues values = evaluate_loss(choice_named<WithMae>("mae"), {output, target});
  EXPECT_EQ(values.metrics().size(), 1u);
  EXPECT_EQ(values.metrics().at("loss").value(), 1.75);
  values.loss.backward();
  EXPECT_TRUE(torch::equal(output.grad(), torch::tensor({-0.25f, 0.0f, 0.25f, -0.25f}).reshape({2, 2})));
  EXPECT_EQ(evaluate_loss(choice_named<WithMae>("mse"), {output, target}).metrics().at("loss").value(), 5.25);
}

TEST(AddedLoss, ItsErrorsNameTheShapes) {
  const WithMae loss = MeanAbsoluteError();
  const auto said = [&](const at::Tensor& output) -> std::string {
    try {
      evaluate_loss(loss, {output, torch::zeros({4})});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(said(torch::zeros({4})), "");
  EXPECT_EQ(said(torch::zeros({4, 2})), "the model's output [4, 2] float32 does not fit the target [4] float32");
  EXPECT_EQ(said(torch::zeros({4}, torch::kLong)),
            "the model's output is [4] int64: a loss needs floating-point numbers");
}

}  // namespace
}  // namespace dtrain::worker
