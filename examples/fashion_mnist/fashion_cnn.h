// A small CNN on Fashion-MNIST as a dtrain::Trial.
#pragma once

#include <dtrain/dtrain.h>

namespace F = torch::nn::functional;

struct CnnImpl : torch::nn::Module {
  explicit CnnImpl(double dropout)
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)))),
        fc1(register_module("fc1", torch::nn::Linear(64 * 7 * 7, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))),
        dropout(dropout) {}

  torch::Tensor forward(torch::Tensor x) {
    x = F::max_pool2d(conv1(x), F::MaxPool2dFuncOptions(2)).relu();
    x = F::max_pool2d(conv2(x), F::MaxPool2dFuncOptions(2)).relu();
    x = fc1(x.flatten(1)).relu();
    x = F::dropout(x, F::DropoutFuncOptions().p(dropout).training(is_training()));
    return fc2(x);
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
  double dropout;
};
TORCH_MODULE(Cnn);

class FashionCnn : public dtrain::Trial {
 public:
  explicit FashionCnn(dtrain::TrialContext& context)
      : context_(context), model_(context.wrap_model(Cnn(context.hyperparameter<double>("dropout", 0.25)))) {
    context.wrap_optimizer(dtrain::AdamW{.lr = context.hyperparameter<double>("learning_rate", 1e-3)});
    if (const double norm = context.hyperparameter<double>("clip_gradient_norm", 0.0); norm > 0) {
      context.clip_gradient_norm(norm);
    }
  }

  dtrain::Loader training_loader() override { return context_.loader(read("train")); }
  dtrain::Loader validation_loader() override {
    return context_.loader(read("t10k"), {.shuffle = false, .drop_last = false});
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
    return batch["image"].unsqueeze(1).to(torch::kFloat).sub_(73.0).div_(90.0);  // mean and deviation of the set
  }

  std::shared_ptr<dtrain::data::Dataset> read(const std::string& part) {
    const std::string folder = context_.data().value("folder", "/usr/share/datasets/fashion-mnist");
    try {
      return context_.read_idx(folder + "/" + part + "-images-idx3-ubyte.gz",
                               folder + "/" + part + "-labels-idx1-ubyte.gz");
    } catch (const dtrain::DataError& error) {
      throw dtrain::DataError(error.what(),
                              "the data comes with `apt install dataset-fashion-mnist`; data.folder in the "
                              "experiment says where it lies");
    }
  }

  dtrain::TrialContext& context_;
  Cnn model_;
};
