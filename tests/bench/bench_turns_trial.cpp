// A small multilayer perceptron whose steps belong to A and to B in turns, so that one job holds two runs which the
// machine's drift hits alike: what diff_power.py splits and compares. In every second repeat each step of B is longer
// by a share of the median of the latest steps that were not made longer: every rank computes nothing for so long.
//
// Of the experiment's `data`: warm_up steps, then repeats of repeat_steps, each of turns of turn_steps, A first; stall
// is the share.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <vector>

#include <dtrain/data/data_sets.h>
#include <dtrain/dtrain.h>

#include "dtrain/base/numeric.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLatest = 101;

class TurnsTrial : public dtrain::Trial {
 public:
  explicit TurnsTrial(dtrain::TrialContext& context) : context_(context) {
    torch::nn::Sequential layers;
    const auto width = context.hyperparameter<std::int64_t>("width");
    const auto depth = context.hyperparameter<std::int64_t>("depth");
    for (std::int64_t i = 0; i < depth; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
      if (i + 1 < depth) layers->push_back(torch::nn::ReLU());
    }
    model_ = context.wrap_model(layers);
    context.wrap_optimizer(dtrain::Sgd{.lr = 0.01});
    const dtrain::Json& data = context.data();
    warm_up_ = data.at("warm_up").get<std::int64_t>();
    repeat_steps_ = data.at("repeat_steps").get<std::int64_t>();
    turn_steps_ = data.at("turn_steps").get<std::int64_t>();
    stall_ = data.at("stall").get<double>();
    task_ = {.samples = 20'000, .features = width, .classes = width, .seed = 1};
  }

  dtrain::Loader training_loader() override {
    return context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto now = Clock::now();
    if (step_ > 0 && !stalled_) {
      latest_.push_back(now - started_);
      if (latest_.size() > kLatest) latest_.pop_front();
    }
    started_ = now;
    stalled_ = is_stalled(step_++);
    if (stalled_) stall(now);
    const auto loss = torch::nn::functional::cross_entropy(model_->forward(batch["features"]), batch["label"]);
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  bool is_stalled(std::int64_t step) const {
    const std::int64_t at = step - warm_up_;
    return at >= 0 && at / repeat_steps_ % 2 == 1 && at % repeat_steps_ / turn_steps_ % 2 == 1;
  }

  void stall(Clock::time_point begin) const {
    std::vector<Clock::duration> latest(latest_.begin(), latest_.end());
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(stall_ * dtrain::median_high(latest));
    while (Clock::now() < end) {
    }
  }

  dtrain::TrialContext& context_;
  torch::nn::Sequential model_ = nullptr;
  dtrain::data::SyntheticOptions task_;
  std::int64_t warm_up_ = 0, repeat_steps_ = 0, turn_steps_ = 0;
  double stall_ = 0;
  std::int64_t step_ = 0;
  bool stalled_ = false;
  Clock::time_point started_;
  std::deque<Clock::duration> latest_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<TurnsTrial>(argc, argv);
}
