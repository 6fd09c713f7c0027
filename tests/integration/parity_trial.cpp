// A trial whose model, optimizer and batches are laid down to the last number, so that PyTorch can do the same beside
// it (parity_model.py builds the same model). Not an example: see examples/ for those.
#include <dtrain/dtrain.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "file_batches.h"
#include "model/weights.h"
#include "trial_cases.h"
#include "trial_optimizer.h"

namespace {

using dtrain::Json;

// A linear layer whose weight may belong to another one too.
struct SharedLinearImpl : torch::nn::Module {
  SharedLinearImpl(torch::Tensor shared_weight, std::int64_t outputs)
      : weight(register_parameter("weight", std::move(shared_weight))),
        bias(register_parameter("bias", torch::zeros({outputs}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(SharedLinear);

// A convolution, a tied weight, a branch that only some samples take (so a whole rank, or all, may not use it), a
// parameter nothing uses, a frozen one and a buffer.
struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t width, bool batch_norm)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)))),
        fc1(register_module("fc1", torch::nn::Linear(256, width))),
        tied_a(register_module("tied_a", SharedLinear(torch::randn({width, width}), width))),
        tied_b(register_module("tied_b", SharedLinear(tied_a->weight, width))),
        extra(register_module("extra", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, 10))) {
    if (batch_norm) norm = register_module("norm", torch::nn::BatchNorm1d(width));
    register_parameter("never", torch::randn({7}));
    frozen = register_parameter("frozen", torch::ones({width}), /*requires_grad=*/false);
    offset = register_buffer("offset", torch::zeros({width}));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    auto h = conv(x.view({-1, 1, 8, 8})).relu().flatten(1);
    h = fc1(h).relu() * frozen + offset;
    if (norm) h = norm(h);
    h = tied_a(h).relu();
    h = tied_b(h).relu();
    if (mask.any().item<bool>()) h = h + mask.unsqueeze(1) * extra(h);
    return out(h);
  }

  torch::nn::Conv2d conv;
  torch::nn::Linear fc1;
  SharedLinear tied_a, tied_b;
  torch::nn::Linear extra, out;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::Tensor frozen, offset;
};
TORCH_MODULE(Net);

// A user's own hook.
class Halve final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& parameter) override { parameter.mutable_grad().mul_(0.5); }
};

// What model_faults.py has the trial do wrong, or unusually: hyperparameters.fault. In its constructor …
void prepare_fault(const std::string& fault, int rank, Net& net) {
  if (fault == "transposed" && rank == 1) {
    net->fc1->weight.set_data(net->fc1->weight.detach().t().contiguous().t());
  }
  if (fault == "halving_hook") {
    for (auto& parameter : net->parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Halve>());
    }
  }
  if (fault == "frozen_norm") net->norm->eval();
}

// … before a batch's forward …
void fault_before(const std::string& fault, std::int64_t batch, int rank, Net& net) {
  const torch::NoGradGuard no_grad;
  auto& weight = net->fc1->weight;
  if (fault == "clamp") weight.clamp_(-0.2, 0.2);
  if (fault == "clamp_data") weight.data().clamp_(-0.2, 0.2);
  if (fault == "clamp_by_rank") weight.clamp_(-0.2 - 0.01 * rank, 0.2);
  if (fault == "clamp_late" && batch > 40) weight.clamp_(-0.2, 0.2);
  if (fault == "set_data" && batch == 3) weight.set_data(weight.detach().clone());
  if (fault == "unfreeze" && batch == 3) net->frozen.set_requires_grad(true);
}

// … and after backward.
void fault_after(const std::string& fault, Net& net) {
  if (fault == "clip") torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
  if (fault == "look") net->fc1->weight.grad().norm().item<double>();
}

class ParityTrial : public dtrain::Trial {
 public:
  explicit ParityTrial(dtrain::TrialContext& context) : context_(context) {
    std::int64_t width = 32;
    if (context.hyperparameter<int>("wider_on_rank", -1) == context.rank()) width = 33;
    Net net(width, context.hyperparameter<bool>("batch_norm", false));
    if (context.hyperparameter<std::string>("dtype") == "float64") net->to(torch::kFloat64);
    fault_ = context.hyperparameter<std::string>("fault", "");
    prepare_fault(fault_, context.rank(), net);
    model_ = context.wrap_model(net);
    loss_factor_ = context.hyperparameter<double>("loss_factor", 1.0);
    const auto optimizer = context.hyperparameter<Json>("optimizer");
    context.wrap_optimizer(dtrain::test::make_optimizer(optimizer),
                           dtrain::test::make_groups(optimizer, context.hyperparameter<Json>("groups", Json::array())));
    if (const auto schedule = context.hyperparameter<Json>("schedule", Json()); !schedule.is_null()) {
      context.wrap_lr_scheduler(dtrain::test::make_schedule(schedule));
    }
    if (const auto plateau = context.hyperparameter<Json>("plateau", Json()); !plateau.is_null()) {
      context.reduce_lr_on_plateau({.factor = plateau.at("factor"),
                                    .patience = plateau.at("patience"),
                                    .min_delta = plateau.at("min_delta"),
                                    .min_factor = plateau.at("min_factor")});
    }
    if (const double norm = context.hyperparameter<double>("clip_norm", 0.0); norm > 0) {
      context.clip_gradient_norm(norm);
    }
    if (const double value = context.hyperparameter<double>("clip_value", 0.0); value > 0) {
      context.clip_gradient_value(value);
    }
    weighs_ = context.hyperparameter<bool>("weighs", false);
    if (const double norm = context.hyperparameter<double>("clip", 0.0); norm > 0) context.clip_gradient_norm(norm);
    if (const auto steps = context.hyperparameter<std::int64_t>("lr_step_size", 0); steps > 0) {
      context.wrap_lr_scheduler(dtrain::lr::step(steps, context.hyperparameter<double>("lr_gamma")));
    }
  }

  // Every rank's weights, for a test that compares them.
  ~ParityTrial() override {
    const auto folder = context_.data().value("dump", "");
    if (folder.empty()) return;
    const auto file = context_.resolve(folder) / ("rank-" + std::to_string(context_.rank()) + ".safetensors");
    dtrain::train::save_weights(*model_, file);
  }

  dtrain::Loader training_loader() override { return batches(); }
  // The training batches, where a test wants a validation.
  dtrain::Loader validation_loader() override { return context_.data().value("validate", false) ? batches() : nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    fault_before(fault_, ++batch_, context_.rank(), model_);
    auto loss = torch::nn::functional::cross_entropy(model_(batch["x"], batch["mask"]), batch["y"]);
    if (fault_ == "nan_loss" && batch_ >= 3 && batch_ <= 5 && context_.rank() == 1) loss = loss * std::nan("");
    if (fault_ == "nan_gradient" && batch_ == context_.hyperparameter<std::int64_t>("fault_batch")) {
      loss.register_hook([](const at::Tensor& gradient) { return gradient * std::nan(""); });
    }
    if (weighs_ && fault_ != "weighs_on_one_rank") {
      // The mean over the labels that are not ignored, and their number.
      const auto labels = static_cast<double>((batch["y"] != -100).sum().item<std::int64_t>());
      context_.backward(loss, fault_ == "negative_weight" ? -labels : labels);
      return {{"loss", loss}};
    }
    if (weighs_ && context_.rank() == 0) {
      context_.backward(loss, 1);
      return {{"loss", loss}};
    }
    context_.backward(loss_factor_ == 1 ? loss : loss * loss_factor_);
    fault_after(fault_, model_);
    return {{"loss", loss}};
  }
  // The loss; the second time it is none.
  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    if (fault_ == "nan_validation" && batch_ >= 4 && batch_ < 8) return {{"loss", std::nan("")}};
    return {{"loss", torch::nn::functional::cross_entropy(model_(batch["x"], batch["mask"]), batch["y"])}};
  }

 private:
  dtrain::Loader batches() const {
    const auto file = context_.resolve(context_.data().at("file").get<std::string>());
    return std::make_shared<dtrain::test::FileBatches>(file, std::vector<std::string>{"x", "y", "mask"},
                                                       context_.rank(), context_.world_size(),
                                                       context_.data().value("tells_length", true));
  }

  dtrain::TrialContext& context_;
  Net model_ = nullptr;
  std::string fault_;
  std::int64_t batch_ = 0;
  bool weighs_ = false;     // batches by the number of their labels
  double loss_factor_ = 1;  // makes gradients as small as a test wants them
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::test::run_trial_or_cases<ParityTrial>(argc, argv);
}
