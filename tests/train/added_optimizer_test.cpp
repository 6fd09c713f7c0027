// What adding an optimizer takes: a struct with its word, its settings and make_update(), an OptimizerUpdate, and a
// place in the list. This one is in no list but the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "document/collector.h"
#include "document/document.h"
#include "document/section.h"
#include "dtrain/config/optimizer.h"
#include "harness/run_ranks.h"
#include "keys/visitors.h"
#include "model/flat_optimizer.h"

namespace dtrain::train {
namespace {

// Steps by the sign of the gradients' running average (Bernstein and others, arXiv:1802.04434: Signum).
struct Signum {
  static constexpr const char* kWord = "signum";
  static constexpr bool kFused = false;
  double lr = 1e-3;
  double beta = 0.9;
  double weight_decay = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_lr(keys, lr);
    declare_weight_decay(keys, weight_decay);
    keys.number({"beta", "Of signum: the decay of the running average."}, beta,
                {.min = 0, .max = 1, .below_max = true});
  }
  std::unique_ptr<OptimizerUpdate> make_update() const;
  bool operator==(const Signum&) const = default;
};

class SignumUpdate final : public OptimizerUpdate {
 public:
  explicit SignumUpdate(const Signum& settings) : settings_(settings) {}
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override { return {"average"}; }
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override {
    if (step.device.divisor.defined()) gradients.div_(step.device.divisor);
    const at::Tensor& average = states[0];
    average.mul_(settings_.beta).add_(gradients, 1 - settings_.beta);
    values.mul_(1 - step.rate * settings_.weight_decay).sub_(average.sign(), step.rate);
  }

 private:
  Signum settings_;
};

std::unique_ptr<OptimizerUpdate> Signum::make_update() const {
  return std::make_unique<SignumUpdate>(*this);
}

using WithSignum = std::variant<Sgd, Adam, AdamW, Signum>;
constexpr config::Key kOptimizerKind{.name = "kind", .text = "Which optimizer.", .required = ""};

WithSignum read_with_signum(const std::string& text) {
  WithSignum optimizer;
  config::Collector collector("experiment.yaml");
  const auto document = config::parse_yaml(text, collector);
  collector.throw_if_any();
  config::Section section(&*document, "optimizer", document->at, collector);
  config::KeyReader::read_all(section, [&](config::Keys& keys) { keys.one_of(kOptimizerKind, optimizer); });
  collector.throw_if_any();
  return optimizer;
}

std::string errors_with_signum(const std::string& text) {
  try {
    read_with_signum(text);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(AddedOptimizer, IsReadWithItsSettings) {
  EXPECT_EQ(read_with_signum("{kind: signum, lr: 0.5}"), WithSignum(Signum{.lr = 0.5}));
  EXPECT_EQ(read_with_signum("{kind: signum, lr: 0.5, beta: 0, weight_decay: 0.25}"),
            WithSignum(Signum{.lr = 0.5, .beta = 0, .weight_decay = 0.25}));
  EXPECT_EQ(read_with_signum("{kind: adamw, lr: 0.5, eps: 1}"), WithSignum(AdamW{.lr = 0.5, .eps = 1}));
  EXPECT_EQ(errors_with_signum("{kind: signum}"),
            "experiment.yaml:1: optimizer.lr: required key is missing: the learning rate, a number above 0");
  EXPECT_EQ(errors_with_signum("{kind: signum, lr: 1, beta: 1}"),
            "experiment.yaml:1: optimizer.beta: must be below 1, not '1'");
  EXPECT_EQ(errors_with_signum("{kind: signum, lr: 1, momentum: 0.5}"),
            "experiment.yaml:1: optimizer.momentum: has no effect with kind signum; sgd has it");
  EXPECT_EQ(errors_with_signum("{kind: adam, lr: 1, beta: 0.5}"),
            "experiment.yaml:1: optimizer.beta: has no effect with kind adam; signum has it");
}

TEST(AddedOptimizer, IsInThePlanAndTheSchema) {
  WithSignum optimizer = Signum{.lr = 0.5, .beta = 0.75};
  const auto declare = [&](config::Keys& keys) { keys.one_of(kOptimizerKind, optimizer); };
  EXPECT_EQ(to_line(config::PlanWriter::write(declare)),
            R"({"kind":"signum","lr":0.5,"weight_decay":0.0,"beta":0.75})");
  const Json schema = config::SchemaWriter::write(declare);
  EXPECT_EQ(schema.at("properties").at("kind").at("enum"), Json::parse(R"(["sgd", "adam", "adamw", "signum"])"));
  EXPECT_EQ(schema.at("properties").at("beta").at("exclusiveMaximum"), 1);
}

TEST(AddedOptimizer, Updates) {
  test::run_communicator_ranks(test::TestWorld(1), "thread", [](comm::Communicator& communicator) {
    torch::nn::Module model;
    const at::Tensor weight = model.register_parameter("weight", torch::tensor({1.0f, -2.0f, 4.0f}));
    FlatParameters flat(model, communicator);
    const auto settings = std::get<Signum>(read_with_signum("{kind: signum, lr: 0.25, beta: 0.5, weight_decay: 0.5}"));
    FlatOptimizer optimizer(settings.make_update(), lr::step(1, 0.5), flat);
    const std::vector<std::uint8_t> used{1};
    const auto step = [&](const at::Tensor& gradient) {
      flat.parameters()[0].gradient.copy_(gradient);
      optimizer.begin_step(used);
      optimizer.update({0, 0, flat.groups()[0].values.numel()});
      optimizer.end_step(used);
      optimizer.advance_schedule();
    };
    // All of it is exact in binary.
    step(torch::tensor({2.0f, -1.0f, 0.0f}));
    EXPECT_TRUE(torch::equal(weight.detach(), torch::tensor({0.625f, -1.5f, 3.5f})));
    step(torch::tensor({-4.0f, 3.0f, -2.0f}));
    EXPECT_TRUE(torch::equal(weight.detach(), torch::tensor({0.7109375f, -1.53125f, 3.40625f})));
    ASSERT_EQ(optimizer.state(0).size(), 1u);
    EXPECT_TRUE(torch::equal(optimizer.state(0)[0].narrow(0, 0, 3), torch::tensor({-1.5f, 1.25f, -1.0f})));
    EXPECT_EQ(flat.groups()[0].values.count_nonzero().item<std::int64_t>(), 3) << "padding did not stay zero";
  });
}

}  // namespace
}  // namespace dtrain::train
