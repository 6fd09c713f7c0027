// Trains a CNN on some classes of Fashion-MNIST, then a new head on other classes, of which there are few images.
// Run it with
//   python3 examples/finetune/prepare.py
//   dtrain launch examples/finetune/pretrain.yaml --run-dir runs/pretrain
//   dtrain launch examples/finetune/finetune.yaml
#include <dtrain/dtrain.h>

namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;

// make_model.py has the same model in Python, with the same names.
struct NetImpl : nn::Module {
  explicit NetImpl(std::int64_t classes)
      : trunk(register_module(
            "trunk", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                                    nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                                    nn::Flatten(), nn::Linear(64 * 7 * 7, 128), nn::ReLU()))),
        head(register_module("head", nn::Linear(128, classes))) {}

  // Computes scores [batch, classes] of images [batch, 1, 28, 28] with values from 0 to 1.
  torch::Tensor forward(const torch::Tensor& images) { return head(trunk->forward((images - 0.286) / 0.353)); }

  nn::Sequential trunk;
  nn::Linear head;
};
TORCH_MODULE(Net);

class Finetune : public dtrain::Trial {
 public:
  explicit Finetune(dtrain::TrialContext& context)
      : context_(context), part_(context.data().at("part").get<std::string>()) {
    Net net(/*classes=*/5);
    const auto trunk = context.hyperparameter<std::string>("trunk", "trained");
    const dtrain::AdamW adamw{.lr = context.hyperparameter<double>("learning_rate")};
    std::vector<dtrain::ParameterGroup> groups;
    if (trunk == "frozen") {
      // Comes before wrap_model(): frozen parameters have no gradients and no optimizer state, and are not exchanged.
      for (torch::Tensor& parameter : net->trunk->parameters()) parameter.requires_grad_(false);
    } else if (trunk == "slow") {
      dtrain::AdamW slow = adamw;
      slow.lr *= context.hyperparameter<double>("trunk_lr_factor", 0.1);
      groups.push_back({"trunk", dtrain::matching("trunk.*"), slow, {}});
    } else if (trunk != "trained") {
      throw dtrain::ConfigError("hyperparameters.trunk is '" + trunk + "'", "use trained, slow or frozen");
    }
    // initial_weights are loaded after this constructor.
    model_ = context.wrap_model(net);
    context.wrap_optimizer(adamw, groups);
  }

  dtrain::Loader training_loader() override { return context_.loader(read("training")); }
  dtrain::Loader validation_loader() override {
    return context_.loader(read("validation"), {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto loss = F::cross_entropy(model_(pixels(batch)), batch["label"]);
    context_.backward(loss);
    return {{"loss", loss}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const auto scores = model_(pixels(batch));
    const auto right = scores.argmax(1) == batch["label"];
    return {{"loss", F::cross_entropy(scores, batch["label"])}, {"accuracy", right.to(torch::kFloat64).mean()}};
  }

 private:
  static torch::Tensor pixels(const dtrain::Batch& batch) {
    return batch["image"].unsqueeze(1).to(torch::kFloat).mul_(1.0 / 255);
  }

  std::shared_ptr<dtrain::data::Dataset> read(const std::string& use) {
    const std::string start = context_.data().value("folder", "data") + "/" + part_ + "-" + use;
    try {
      return context_.read_idx(start + "-images.idx", start + "-labels.idx");
    } catch (const dtrain::DataError& error) {
      throw dtrain::DataError(error.what(),
                              "examples/finetune/prepare.py writes these files; data.folder names their folder");
    }
  }

  dtrain::TrialContext& context_;
  std::string part_;  // "old" or "new": the classes to train on
  Net model_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<Finetune>(argc, argv);
}
