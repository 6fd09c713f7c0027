// The trial that bench_step times: six Linear 2048x2048 with ReLU between them, 25M parameters, fused AdamW.
#include <algorithm>

#include <dtrain/data/data_sets.h>
#include <dtrain/dtrain.h>

#include "stepper.h"

namespace {

class StepTrial : public dtrain::Trial {
 public:
  explicit StepTrial(dtrain::TrialContext& context) : context_(context) {
    torch::nn::Sequential layers;
    const auto width = context.hyperparameter<std::int64_t>("width");
    const auto depth = context.hyperparameter<std::int64_t>("depth");
    for (std::int64_t i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
      if (i + 1 < depth) layers->push_back(torch::nn::ReLU());
    }
    model_ = context.wrap_model(layers);
    context.wrap_optimizer(dtrain::AdamW{});
    const std::int64_t samples = std::max<std::int64_t>(256, context.batch_size() * context.world_size());
    task_ = {.samples = samples, .features = width, .classes = 0, .targets = width, .seed = 1};
  }

  dtrain::Loader training_loader() override {
    dtrain::Loader loader = context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
    if (!context_.data().contains("fifo")) return loader;  // a run of its own
    const std::string base = context_.data().at("fifo").get<std::string>() + std::to_string(context_.rank());
    return std::make_shared<dtrain::bench::SteppedSource>(std::move(loader), base + ".commands", base + ".replies");
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto loss = torch::nn::functional::mse_loss(model_->forward(batch["features"]), batch["target"]);
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  dtrain::TrialContext& context_;
  torch::nn::Sequential model_ = nullptr;
  dtrain::data::SyntheticOptions task_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<StepTrial>(argc, argv);
}
