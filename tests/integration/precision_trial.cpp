// The trial of precision_parity.py: a small CNN or a small GPT on batches of a file, AdamW. The same models in Python:
// precision_models.py.
//
// hyperparameters.model: "cnn" (images [1, 8, 8], batch normalization) or "gpt".
#include <dtrain/dtrain.h>

#include "bench/compute_models.h"
#include "file_batches.h"
#include "trial_cases.h"
#include "trial_optimizer.h"

namespace {

namespace F = torch::nn::functional;

struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(16))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)))),
        fc1(register_module("fc1", torch::nn::Linear(32 * 4 * 4, 64))),
        fc2(register_module("fc2", torch::nn::Linear(64, 10))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = norm(conv1(x)).relu();
    x = F::max_pool2d(conv2(x), F::MaxPool2dFuncOptions(2)).relu();
    return fc2(fc1(x.flatten(1)).relu());
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Cnn);

class PrecisionTrial : public dtrain::Trial {
 public:
  explicit PrecisionTrial(dtrain::TrialContext& context) : context_(context) {
    const auto name = context.hyperparameter<std::string>("model");
    if (name == "cnn") {
      cnn_ = context.wrap_model(Cnn());
    } else if (name == "gpt") {
      gpt_ = context.wrap_model(dtrain::bench::Gpt(
          dtrain::bench::GptSizes{.tokens = 50, .length = 16, .layers = 2, .heads = 2, .width = 32, .bias = false}));
    } else {
      throw dtrain::ConfigError("hyperparameters.model is '" + name + "'", "use cnn or gpt");
    }
    context.wrap_optimizer(dtrain::test::make_optimizer(context.hyperparameter<dtrain::Json>("optimizer")));
  }

  dtrain::Loader training_loader() override {
    const auto file = context_.resolve(context_.data().at("file").get<std::string>());
    return std::make_shared<dtrain::test::FileBatches>(file, std::vector<std::string>{"x", "y"}, context_.rank(),
                                                       context_.world_size());
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto scores = cnn_ ? cnn_(batch["x"]) : gpt_(batch["x"]).flatten(0, 1);
    const auto loss = F::cross_entropy(scores, batch["y"].flatten());
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  dtrain::TrialContext& context_;
  Cnn cnn_ = nullptr;
  dtrain::bench::Gpt gpt_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::test::run_trial_or_cases<PrecisionTrial>(argc, argv);
}
