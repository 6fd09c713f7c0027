// A multilayer perceptron that logs how much of its gradients' memory is resident, for sharded_gradients.py and
// tests/bench/sharded_gradients.py.
//
// hyperparameters: width, depth, clip (0: none), side (true: odd ranks also use a second branch in every third batch;
// the others never do).
#include <dtrain/data/data_sets.h>
#include <dtrain/dtrain.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

class GradientsTrial : public dtrain::Trial {
 public:
  explicit GradientsTrial(dtrain::TrialContext& context)
      : context_(context), has_side_(context.hyperparameter<bool>("side", false)) {
    const auto width = context.hyperparameter<std::int64_t>("width");
    const auto depth = context.hyperparameter<std::int64_t>("depth");
    task_ = {.samples = 5'000, .features = 61, .classes = 10, .seed = 1};
    model_->register_module("in", in_ = torch::nn::Linear(61, width));
    for (std::int64_t i = 0; i < depth; ++i) layers_->push_back(torch::nn::Linear(width, width));
    model_->register_module("layers", layers_);
    if (has_side_) model_->register_module("side", side_ = torch::nn::Linear(61, width));
    model_->register_module("out", out_ = torch::nn::Linear(width, 10));
    context.wrap_model(model_);
    context.wrap_optimizer(dtrain::AdamW{.lr = 1e-3});
    if (const double clip = context.hyperparameter<double>("clip", 0.0); clip > 0) context.clip_gradient_norm(clip);
  }

  dtrain::Loader training_loader() override {
    return context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    // Before any gradient of this batch exists.
    if (begin_ != 0) context_.log("resident", {static_cast<double>(resident()), dtrain::Reduction::kMax});
    context_.log("bytes", {static_cast<double>(end_ - begin_), dtrain::Reduction::kMax});
    ++batch_;
    const at::Tensor x = batch["features"];
    at::Tensor hidden = in_->forward(x);
    if (has_side_ && context_.rank() % 2 == 1 && batch_ % 3 == 0) hidden = hidden + side_->forward(x);
    for (const auto& layer : *layers_) {
      hidden = torch::relu(layer->as<torch::nn::Linear>()->forward(hidden));
    }
    const auto loss = torch::nn::functional::cross_entropy(out_->forward(hidden), batch["label"]);
    context_.backward(loss);
    find_gradients();
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  // Where the gradients lie: all are in one piece of memory.
  void find_gradients() {
    for (const at::Tensor& parameter : model_->parameters()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(gradient.const_data_ptr());
      begin_ = begin_ == 0 ? begin : std::min(begin_, begin);
      end_ = std::max(end_, begin + gradient.nbytes());
    }
  }

  std::uintptr_t resident() const {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t begin = begin_ / page * page;
    std::vector<unsigned char> pages((end_ - begin + page - 1) / page);
    if (::mincore(reinterpret_cast<void*>(begin), end_ - begin, pages.data()) != 0) throw dtrain::Error("no mincore()");
    return page * static_cast<std::uintptr_t>(std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; }));
  }

  dtrain::TrialContext& context_;
  const bool has_side_;
  dtrain::data::SyntheticOptions task_;
  std::shared_ptr<torch::nn::Module> model_ = std::make_shared<torch::nn::Module>();
  torch::nn::Linear in_ = nullptr, side_ = nullptr, out_ = nullptr;
  torch::nn::ModuleList layers_;
  std::int64_t batch_ = 0;
  std::uintptr_t begin_ = 0, end_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<GradientsTrial>(argc, argv);
}
