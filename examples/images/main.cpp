// Trains ResNet-18 on shards of pictures, with augmentation. README.md says how to make the shards. Run it with
//   dtrain launch examples/images/images.yaml
#include <dtrain/data/shards.h>
#include <dtrain/data/transforms.h>

#include "resnet18.h"

namespace F = torch::nn::functional;
namespace data = dtrain::data;

class Images : public dtrain::Trial {
 public:
  explicit Images(dtrain::TrialContext& context)
      : context_(context),
        size_(context.hyperparameter<std::int64_t>("image_size", 224)),
        model_(context.wrap_model(ResNet18(context.hyperparameter<std::int64_t>("classes", 10)))) {
    context.wrap_optimizer(dtrain::AdamW{.lr = context.hyperparameter<double>("learning_rate", 1e-3)});
  }

  dtrain::Loader training_loader() override {
    return context_.loader(data::transformed(
        shards("training"), {data::RandomResizedCrop{.size = size_, .min_area = 0.4}, data::HorizontalFlip{},
                             data::ColorJitter{.brightness = 0.2, .contrast = 0.2}, data::Normalize{}}));
  }
  dtrain::Loader validation_loader() override {
    return context_.loader(
        data::transformed(shards("validation"),
                          {data::Resize{.size = size_ * 8 / 7}, data::CenterCrop{.size = size_}, data::Normalize{}}),
        {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto loss = F::cross_entropy(model_(batch["image"]), batch["label"]);
    context_.backward(loss);
    return {{"loss", loss}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const auto scores = model_(batch["image"]);
    const auto right = scores.argmax(1) == batch["label"];
    return {{"loss", F::cross_entropy(scores, batch["label"])}, {"accuracy", right.to(torch::kFloat64).mean()}};
  }

 private:
  // Returns the shards that a key of the experiment's `data` names.
  std::shared_ptr<data::SampleSource> shards(const std::string& key) {
    const auto pattern = context_.data().at(key).get<std::string>();
    return data::load_shards(context_.resolve(pattern).string(), context_.host_share());
  }

  dtrain::TrialContext& context_;
  const std::int64_t size_;
  ResNet18 model_;
};

int main(int argc, char** argv) {
  return dtrain::run_trial<Images>(argc, argv);
}
