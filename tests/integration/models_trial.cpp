// A trial with several models, losses and optimizer steps in a batch, so that PyTorch can do the same beside it
// (several_models.py builds the same models). hyperparameters.recipe says what a batch does.
#include <dtrain/dtrain.h>

#include <memory>
#include <string>

#include "file_batches.h"
#include "trial_optimizer.h"

namespace {

using dtrain::Json;
using torch::Tensor;

torch::nn::Sequential generator() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 12));
}

torch::nn::Sequential discriminator() {
  return torch::nn::Sequential(torch::nn::Linear(12, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
}

Tensor loss_of(const Tensor& scores, double target) {
  return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, target));
}

class ModelsTrial : public dtrain::Trial {
 public:
  explicit ModelsTrial(dtrain::TrialContext& context)
      : context_(context),
        recipe_(context.hyperparameter<std::string>("recipe")),
        fault_(context.hyperparameter<std::string>("fault", "")),
        period_(context.hyperparameter<std::int64_t>("period", 1)) {
    if (recipe_ == "twins") generator_ = discriminator();
    generator_->to(torch::kFloat64);
    discriminator_->to(torch::kFloat64);
    if (recipe_ == "one") {
      context.wrap_model(discriminator_);
      context.wrap_optimizer(dtrain::test::make_optimizer(context.hyperparameter<Json>("discriminator")));
    } else {
      context.wrap_model("generator", generator_);
      context.wrap_model("discriminator", discriminator_);
      wrap("generator");
      if (fault_ != "no_optimizer") wrap("discriminator");
    }
    if (const double norm = context.hyperparameter<double>("clip", 0.0); norm > 0) context.clip_gradient_norm(norm);
  }

  dtrain::Loader training_loader() override { return batches(); }
  dtrain::Loader validation_loader() override { return context_.data().value("validate", false) ? batches() : nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    ++batch_;
    if (recipe_ == "gan") return alternate(batch);
    if (recipe_ == "joint") return joint(batch);
    if (recipe_ == "twins") return twins(batch);
    if (recipe_ == "wgan") return critic(batch);
    return one(batch);
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    return {{"loss", loss_of(discriminator_->forward(batch["x"]), 1)}};
  }
  dtrain::TrialState save_state() override { return {{}, {{"batch", batch_}}}; }
  void load_state(const dtrain::TrialState& state) override { batch_ = state.values.at("batch").get<std::int64_t>(); }

 private:
  void wrap(const std::string& name) {
    const auto settings = context_.hyperparameter<Json>(name);
    std::vector<dtrain::ParameterGroup> groups;
    if (settings.contains("groups")) groups = dtrain::test::make_groups(settings, settings["groups"]);
    context_.wrap_optimizer(name, dtrain::test::make_optimizer(settings), groups);
    if (settings.contains("schedule")) {
      context_.wrap_lr_scheduler(name, dtrain::test::make_schedule(settings["schedule"]));
    }
  }
  Tensor score(const Tensor& x) { return discriminator_->forward(x); }

  // The discriminator steps before the generator's loss is computed.
  dtrain::Metrics alternate(const dtrain::Batch& batch) {
    const Tensor fake = generator_->forward(batch["z"]);
    const Tensor of_discriminator = loss_of(score(batch["x"]), 1) + loss_of(score(fake.detach()), 0);
    if (fault_ == "step_first") context_.step();
    if (fault_ == "unknown") context_.backward(of_discriminator, {.models = {"critic"}});
    const bool other_rank = context_.rank() == 1 && batch_ == context_.hyperparameter<std::int64_t>("fault_batch", 0);
    if (fault_ == "other_model" && other_rank) {
      context_.backward(loss_of(score(fake), 1), {.models = {"generator"}});
      context_.step();
      context_.backward(of_discriminator, {.models = {"discriminator"}});
      return {{"loss", of_discriminator}};
    }
    context_.backward(of_discriminator, {.models = {"discriminator"}});
    if (fault_ == "step_missing" && other_rank) return {{"loss", of_discriminator}};
    context_.step();
    const Tensor of_generator = loss_of(score(fake), 1);
    context_.backward(of_generator, {.models = {"generator"}});
    return {{"loss", of_discriminator}, {"generator_loss", of_generator}};
  }

  // Both models step at the end of the batch, or of several batches.
  dtrain::Metrics joint(const dtrain::Batch& batch) {
    const Tensor fake = generator_->forward(batch["z"]);
    const Tensor of_discriminator = loss_of(score(batch["x"]), 1) + loss_of(score(fake.detach()), 0);
    const Tensor of_generator = loss_of(score(fake), 1);
    const bool generator_first = context_.hyperparameter<bool>("generator_first", false);
    if (generator_first) context_.backward(of_generator, {.models = {"generator"}});
    context_.backward(of_discriminator, {.models = {"discriminator"}});
    if (fault_ == "old_graph") context_.step();
    if (!generator_first) context_.backward(of_generator, {.models = {"generator"}});
    return {{"loss", of_discriminator}, {"generator_loss", of_generator}};
  }

  // Two models of the same form, with losses of their own.
  dtrain::Metrics twins(const dtrain::Batch& batch) {
    const Tensor first = loss_of(generator_->forward(batch["x"]), 0), second = loss_of(score(batch["x"]), 1);
    context_.backward(first, {.models = {"generator"}});
    context_.backward(second, {.models = {"discriminator"}});
    return {{"loss", second}};
  }

  // Wasserstein loss with a gradient penalty; the generator steps in every period_-th batch.
  dtrain::Metrics critic(const dtrain::Batch& batch) {
    const Tensor fake = generator_->forward(batch["z"]);
    const Tensor between = ((batch["x"] + fake.detach()) / 2).requires_grad_();
    const Tensor slope = torch::autograd::grad({score(between).sum()}, {between}, {}, true, /*create_graph=*/true)[0];
    const Tensor penalty = (slope.norm(2, 1) - 1).pow(2).mean();
    const Tensor loss = score(fake.detach()).mean() - score(batch["x"]).mean() + 10 * penalty;
    context_.backward(loss, {.models = {"discriminator"}});
    if (batch_ % period_ != 0) return {{"loss", loss}};
    context_.step();
    context_.backward(-score(fake).mean(), {.models = {"generator"}});
    return {{"loss", loss}};
  }

  // One model: two losses through the same graph, in two calls; its first layer is frozen in some batches.
  dtrain::Metrics one(const dtrain::Batch& batch) {
    if (fault_ == "step") context_.step();
    const bool frozen = context_.hyperparameter<bool>("freezes", false) && (batch_ <= 30 || batch_ > 60);
    for (auto& parameter : discriminator_[0]->parameters()) parameter.set_requires_grad(!frozen);
    const Tensor scores = score(batch["x"]);
    const Tensor first = loss_of(scores, 1);
    const Tensor second = (scores - 0.5).abs().mean();
    context_.backward(first, {.more_follows = fault_ != "twice", .retain_graph = true});
    context_.backward(second);
    return {{"loss", first}};
  }

  dtrain::Loader batches() const {
    const auto file = context_.resolve(context_.data().at("file").get<std::string>());
    return std::make_shared<dtrain::test::FileBatches>(file, std::vector<std::string>{"x", "z"}, context_.rank(),
                                                       context_.world_size());
  }

  dtrain::TrialContext& context_;
  const std::string recipe_, fault_;
  const std::int64_t period_;
  torch::nn::Sequential generator_ = generator(), discriminator_ = discriminator();
  std::int64_t batch_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<ModelsTrial>(argc, argv);
}
