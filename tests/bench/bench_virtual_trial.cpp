// The trial of virtual_cost.py: random data in memory, AdamW, and steps on command (contestant.h has the protocol),
// whose times are those from one call of train_batch() for the first logical rank of the process to the next.
//
// hyperparameters.model: "cnn" (that of the Fashion-MNIST example), "mlp" (with width, depth) or "gpt" (with tokens,
// length, layers, heads, width).
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <dtrain/data/data_sets.h>
#include <dtrain/dtrain.h>

#include "compute_models.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/rank/rank_session.h"
#include "fashion_cnn.h"

namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kSamples = 2048;

// Waits for its turn before each block of steps, and then answers with their times.
class Turns {
 public:
  explicit Turns(const std::string& base) : commands_(base + ".commands"), replies_(base + ".replies") {
    if (!commands_ || !replies_) throw dtrain::Error("the FIFOs " + base + ".* cannot be opened");
  }

  void begin_step() {
    if (started_.count() > 0) times_.push_back((clock_.monotonic() - started_).count());
    if (left_ == 0 && !over_) wait();
    --left_;
    started_ = clock_.monotonic();
  }

 private:
  void wait() {
    for (const std::int64_t time : times_) replies_ << time << " ";
    if (!times_.empty()) replies_ << std::endl;
    times_.clear();
    over_ = !(commands_ >> left_) || left_ == 0;
    if (over_) std::raise(SIGTERM);  // asks the run to stop
  }

  std::ifstream commands_;
  std::ofstream replies_;
  const dtrain::SystemClock clock_;
  dtrain::Nanoseconds started_{0};
  std::vector<std::int64_t> times_;
  std::int64_t left_ = 0;
  bool over_ = false;
};

torch::nn::Sequential mlp(std::int64_t width, std::int64_t depth) {
  torch::nn::Sequential layers;
  for (std::int64_t i = 0; i < depth; ++i) {
    layers->push_back(torch::nn::Linear(width, width));
    if (i + 1 < depth) layers->push_back(torch::nn::ReLU());
  }
  return layers;
}

class VirtualTrial : public dtrain::Trial {
 public:
  explicit VirtualTrial(dtrain::TrialContext& context)
      : context_(context),
        first_(context.session().logical().begin),
        turns_(context.data().at("fifo").get<std::string>() + std::to_string(context.session().world().rank)) {
    const auto number = [&](const char* name) { return context.hyperparameter<std::int64_t>(name); };
    const auto model = context.hyperparameter<std::string>("model");
    task_ = {.samples = kSamples, .classes = 10, .seed = 1};
    if (model == "cnn") {
      task_.features = kSide * kSide;
      Cnn cnn = context.wrap_model(Cnn(0.25));
      forward_ = [cnn](const torch::Tensor& x) mutable { return cnn(x.view({-1, 1, kSide, kSide})); };
    } else if (model == "mlp") {
      task_.features = task_.classes = number("width");
      torch::nn::Sequential layers = context.wrap_model(mlp(number("width"), number("depth")));
      forward_ = [layers](const torch::Tensor& x) mutable { return layers->forward(x); };
    } else if (model == "gpt") {
      const dtrain::bench::GptSizes sizes{.tokens = number("tokens"),
                                          .length = number("length"),
                                          .layers = number("layers"),
                                          .heads = number("heads"),
                                          .width = number("width")};
      task_.features = sizes.length;
      task_.classes = sizes.tokens;
      auto gpt = context.wrap_model(dtrain::bench::Gpt(sizes));
      forward_ = [gpt, sizes](const torch::Tensor& x) mutable {
        const torch::Tensor tokens = x.mul(1000).to(torch::kLong).remainder(sizes.tokens);
        return gpt(tokens).flatten(0, 1);
      };
    } else {
      throw dtrain::ConfigError("hyperparameters.model is '" + model + "'", "use cnn, mlp or gpt");
    }
    context.wrap_optimizer(dtrain::AdamW{});
  }

  dtrain::Loader training_loader() override {
    return context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    if (context_.rank() == first_) turns_.begin_step();
    const torch::Tensor scores = forward_(batch["features"]);
    const std::int64_t per_sample = scores.size(0) / batch.samples;
    const auto loss = F::cross_entropy(scores, batch["label"].repeat_interleave(per_sample));
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  dtrain::TrialContext& context_;
  const int first_;  // logical rank of this process
  Turns turns_;
  dtrain::data::SyntheticOptions task_;
  std::function<torch::Tensor(const torch::Tensor&)> forward_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<VirtualTrial>(argc, argv);
}
