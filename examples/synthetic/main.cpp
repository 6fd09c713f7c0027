// A multilayer perceptron of any width and depth on generated data. Without files and waits for a disk, it measures the
// speed of training on several slots. Run it with
//   dtrain launch configs/synthetic.yaml
#include <dtrain/dtrain.h>

#include <dtrain/data/data_sets.h>

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl(std::int64_t inputs, std::int64_t width, std::int64_t depth, std::int64_t classes) {
    for (std::int64_t layer = 0; layer < depth; ++layer) {
      const std::int64_t from = layer == 0 ? inputs : width;
      const std::int64_t to = layer + 1 == depth ? classes : width;
      layers.push_back(register_module("layer" + std::to_string(layer), torch::nn::Linear(from, to)));
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      x = layers[layer](x);
      if (layer + 1 < layers.size()) x = x.relu();
    }
    return x;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

class SyntheticTrial : public dtrain::Trial {
 public:
  explicit SyntheticTrial(dtrain::TrialContext& context) : context_(context) {
    task_.features = context.hyperparameter<std::int64_t>("features", 256);
    task_.classes = context.hyperparameter<std::int64_t>("classes", 10);
    task_.samples = context.data().value("samples", std::int64_t{20'000});
    task_.seed = context.data().value("seed", std::uint64_t{1});
    model_ = context.wrap_model(Mlp(task_.features, context.hyperparameter<std::int64_t>("width", 512),
                                    context.hyperparameter<std::int64_t>("depth", 4), task_.classes));
    context.wrap_optimizer(dtrain::Sgd{.lr = context.hyperparameter<double>("learning_rate", 0.05), .momentum = 0.9});
  }

  dtrain::Loader training_loader() override {
    return context_.loader(dtrain::data::make_synthetic(task_, context_.host_share()));
  }

  dtrain::Loader validation_loader() override {
    auto held_out = task_;
    held_out.first = task_.samples;  // the same task, with samples that are not trained on
    held_out.samples = std::max<std::int64_t>(1, task_.samples / 10);
    return context_.loader(dtrain::data::make_synthetic(held_out, context_.host_share()),
                           {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto loss = torch::nn::functional::cross_entropy(model_(batch["features"]), batch["label"]);
    context_.backward(loss);
    return {{"loss", loss}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const auto scores = model_(batch["features"]);
    const auto right = scores.argmax(1) == batch["label"];
    return {{"loss", torch::nn::functional::cross_entropy(scores, batch["label"])},
            {"accuracy", right.to(torch::kFloat64).mean()}};
  }

  torch::Tensor predict_batch(const dtrain::Batch& batch) override { return model_(batch["features"]); }

 private:
  dtrain::TrialContext& context_;
  dtrain::data::SyntheticOptions task_;
  Mlp model_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<SyntheticTrial>(argc, argv);
}
