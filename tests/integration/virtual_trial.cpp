// A trial whose result depends on all that belongs to a logical rank: its number, its batches, its random streams, its
// buffers. virtual_ranks.py and elastic.py train it on several numbers of ranks. hyperparameters.fault plants mistakes.
#include <dtrain/dtrain.h>

#include <dtrain/data/data_sets.h>

#include <ATen/Parallel.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trial_cases.h"
#include "trial_optimizer.h"

namespace {

constexpr std::int64_t kSide = 8;
constexpr std::int64_t kClasses = 7;

struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(6))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 8, 3).padding(1)))),
        more_norm(register_module("more_norm", torch::nn::BatchNorm2d(8))),
        dropout(register_module("dropout", torch::nn::Dropout(0.2))),
        out(register_module("out", torch::nn::Linear(8 * kSide * kSide / 4, kClasses))) {
    // Read by the next batch of the logical rank, in training too.
    scale = register_buffer("scale", torch::ones({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = norm(first(x.view({-1, 1, kSide, kSide}))).relu();
    h = torch::max_pool2d(more_norm(second(h)).relu(), 2).flatten(1) * scale.clone();
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      scale.mul_(0.9).add_(h.abs().mean(), 0.1);
    }
    return out(dropout(h));
  }
  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d second;
  torch::nn::BatchNorm2d more_norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear out;
  torch::Tensor scale;
};
TORCH_MODULE(Cnn);

// A branch that only some batches take, so that logical ranks use different parameters.
struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : first(register_module("first", torch::nn::Linear(kSide * kSide, 48))),
        extra(register_module("extra", torch::nn::Linear(48, 48))),
        out(register_module("out", torch::nn::Linear(48, kClasses))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = first(x).relu();
    if (x[0][0].item<float>() > 0) h = h + extra(h);
    return out(h);
  }
  torch::nn::Linear first, extra, out;
};
TORCH_MODULE(Mlp);

// Gives the same up to rounding on any number of ranks.
struct PlainImpl : torch::nn::Module {
  PlainImpl()
      : first(register_module("first", torch::nn::Linear(kSide * kSide, 48))),
        out(register_module("out", torch::nn::Linear(48, kClasses))) {}
  torch::Tensor forward(const torch::Tensor& x) { return out(first(x).tanh()); }
  torch::nn::Linear first, out;
};
TORCH_MODULE(Plain);

// A file of each process with a line for each of its samples: the batch, the rank, and a value of the sample.
class SampleLog {
 public:
  explicit SampleLog(const std::string& folder) {
    // Processes of several hosts may have the same number.
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    if (!folder.empty()) file_.open(folder + "/samples-" + std::to_string(::getpid()) + "-" + std::to_string(now));
  }
  void write(std::int64_t batch, int rank, const torch::Tensor& features) {
    if (!file_.is_open()) return;
    for (std::int64_t row = 0; row < features.size(0); ++row) {
      file_ << batch << ' ' << rank << ' ' << std::hexfloat << features[row][0].item<float>() << std::endl;
    }
  }

 private:
  std::ofstream file_;
};

class VirtualTrial : public dtrain::Trial {
 public:
  explicit VirtualTrial(dtrain::TrialContext& context) : context_(context) {
    const auto model = context.hyperparameter<std::string>("model");
    if (model == "cnn") {
      Cnn cnn = context.wrap_model(Cnn());
      forward_ = [cnn](const torch::Tensor& x) mutable { return cnn->forward(x); };
    } else if (model == "plain") {
      Plain plain = context.wrap_model(Plain());
      forward_ = [plain](const torch::Tensor& x) mutable { return plain->forward(x); };
    } else {
      Mlp mlp = context.wrap_model(Mlp());
      forward_ = [mlp](const torch::Tensor& x) mutable { return mlp->forward(x); };
    }
    context.wrap_optimizer(dtrain::test::make_optimizer(context.hyperparameter<dtrain::Json>("optimizer")));
    if (const double norm = context.hyperparameter<double>("clip", 0.0); norm > 0) context.clip_gradient_norm(norm);
    stop_at_ = context.hyperparameter<std::int64_t>("stop_at", 0);
    kill_at_ = context.hyperparameter<std::int64_t>("kill_at", 0);
    killed_ = context.hyperparameter<int>("killed", 0);
    ragged_ = context.hyperparameter<bool>("ragged", false);
    fault_ = context.hyperparameter<std::string>("fault", "");
    // In these batches rank 0 waits for the file FOLDER/BATCH.
    holds_ = context.hyperparameter<std::vector<std::int64_t>>("hold", {});
    folder_ = context.hyperparameter<std::string>("folder", "");
    samples_.emplace(folder_);
    if (context.world_size() > context.hyperparameter<int>("most_ranks", 1024))
      throw std::runtime_error("too many ranks");
    if (fault_ == "threads") at::set_num_threads(3);
    if (fault_ == "callback") context.add_callback(std::make_shared<dtrain::Callback>());
  }

  dtrain::Loader training_loader() override {
    return loader({.samples = context_.data().at("samples"), .features = kSide * kSide, .classes = kClasses, .seed = 3},
                  {.workers = 1, .drop_last = !ragged_});
  }
  dtrain::Loader validation_loader() override {
    return loader({.samples = 53, .first = 100'000, .features = kSide * kSide, .classes = kClasses, .seed = 3},
                  {.workers = 0, .shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const std::int64_t number = context_.around_the_loop().batch;
    if (number == stop_at_ && context_.rank() == 0) std::raise(SIGTERM);
    if (number == kill_at_ && context_.rank() == killed_) std::raise(SIGKILL);
    const bool holds = context_.rank() == 0 && std::ranges::find(holds_, number) != holds_.end();
    while (holds && !std::filesystem::exists(std::filesystem::path(folder_) / std::to_string(number))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    samples_->write(number, context_.rank(), batch["features"]);
    torch::Tensor x = batch["features"];
    if (fault_ == "unseeded") x = x + 1e-3 * static_cast<double>(unseeded_() % 1000);
    const torch::Tensor scores = forward_(x);
    torch::Tensor loss = torch::nn::functional::cross_entropy(scores, batch["label"]);
    if (fault_ == "nan" && context_.rank() == 3) loss = loss * std::nan("");
    if (fault_ == "weight") {
      context_.backward(loss, 2.0);
    } else if (fault_ == "collective") {
      context_.all_reduce(loss);
    } else {
      context_.backward(loss);
    }
    context_.log("largest", dtrain::MetricValue(scores.abs().max(), dtrain::Reduction::kMax));
    context_.log("drawn", torch::rand({}).item<double>());
    if (context_.rank() % 2 == 1) context_.log("odd", dtrain::MetricValue(loss).mean_over(context_.rank()));
    return {{"loss", loss}, {"samples", dtrain::MetricValue(double(batch.samples), dtrain::Reduction::kSum)}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const torch::Tensor scores = forward_(batch["features"] + 0.01 * torch::rand({1}));
    return {{"loss", torch::nn::functional::cross_entropy(scores, batch["label"])},
            {"accuracy", scores.argmax(1).eq(batch["label"]).to(torch::kFloat).mean()}};
  }

  torch::Tensor predict_batch(const dtrain::Batch& batch) override { return forward_(batch["features"]); }

  dtrain::TrialState save_state() override {
    dtrain::TrialState state;
    if (fault_ == "state") state.values["counted"] = 1;
    return state;
  }

 private:
  dtrain::Loader loader(const dtrain::data::SyntheticOptions& task, const dtrain::LoaderSettings& settings) {
    return context_.loader(dtrain::data::make_synthetic(task, context_.host_share()), settings);
  }

  dtrain::TrialContext& context_;
  std::function<torch::Tensor(const torch::Tensor&)> forward_;
  std::string fault_;
  std::string folder_;
  std::vector<std::int64_t> holds_;
  std::optional<SampleLog> samples_;
  bool ragged_ = false;
  std::int64_t stop_at_ = 0;  // the batch in which the run is asked to stop; 0: none
  std::int64_t kill_at_ = 0;  // the batch in which the process of logical rank `killed_` dies; 0: none
  int killed_ = 0;
  std::mt19937 unseeded_;  // of the process: its stream goes on from one logical rank to the next
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::test::run_trial_or_cases<VirtualTrial>(argc, argv);
}
