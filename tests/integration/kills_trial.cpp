// The trial of kills.py: a small network with dropout and batch normalization on shuffled samples, with state of its
// own that differs from rank to rank. Each rank appends a line "BATCH SUM" to hyperparameters.folder/samples-RANK
// before each batch, where SUM is the sum of the bits of its samples.
#include <dtrain/dtrain.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <dtrain/data/data_sets.h>

namespace {

class SampleLog final : public dtrain::Callback {
 public:
  explicit SampleLog(dtrain::TrialContext& context)
      : file_(context.hyperparameter<std::string>("folder") + "/samples-" + std::to_string(context.rank()),
              std::ios::app) {}
  void before_batch(const Position& at, const dtrain::Batch& batch) override {
    const auto bits = batch["features"].contiguous().view(torch::kInt);
    file_ << std::to_string(at.batch) + " " + std::to_string(bits.to(torch::kLong).sum().item<std::int64_t>()) + "\n"
          << std::flush;
  }

 private:
  std::ofstream file_;
};

class KillsTrial final : public dtrain::Trial {
 public:
  explicit KillsTrial(dtrain::TrialContext& context) : context_(context) {
    const auto width = context.hyperparameter<std::int64_t>("width", 64);
    task_ = {.samples = 4000, .features = 32, .classes = 10, .seed = 3};
    model_ = context.wrap_model(torch::nn::Sequential(
        torch::nn::Linear(task_.features, width), torch::nn::BatchNorm1d(width), torch::nn::ReLU(),
        torch::nn::Dropout(0.2), torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, 10)));
    context.wrap_optimizer(dtrain::AdamW{.lr = 0.002});
    context.add_callback(std::make_shared<SampleLog>(context));
  }

  dtrain::Loader training_loader() override {
    return context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
  }
  dtrain::Loader validation_loader() override {
    auto held_out = task_;
    held_out.first = task_.samples;
    held_out.samples = 400;
    return context_.loader(dtrain::data::make_synthetic(held_out, context_.host_share()),
                           {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(context_.hyperparameter<int>("step_ms", 4)));
    auto loss = torch::nn::functional::cross_entropy(model_->forward(batch["features"]), batch["label"]);
    loss = loss * (1 + 0.1 * average_);
    average_ = 0.9 * average_ + 0.1 * loss.item<double>();
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    return {{"loss", torch::nn::functional::cross_entropy(model_->forward(batch["features"]), batch["label"])}};
  }
  // A mean of this rank's losses, on which its later losses depend.
  dtrain::TrialState save_state() override { return {{}, {{"average", average_}, {"rank", context_.rank()}}}; }
  void load_state(const dtrain::TrialState& state) override {
    if (state.values.at("rank") != context_.rank()) throw dtrain::Error("this is another rank's state");
    average_ = state.values.at("average");
  }

 private:
  dtrain::TrialContext& context_;
  dtrain::data::SyntheticOptions task_;
  torch::nn::Sequential model_ = nullptr;
  double average_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<KillsTrial>(argc, argv);
}
