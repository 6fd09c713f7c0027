// The trial of bench_compute for a GPT and for ResNet-18: random data in memory, AdamW.
//
// hyperparameters.model: "gpt" (with tokens, length, layers, heads, width) or "resnet18" (images of 3x64x64).
#include <algorithm>
#include <random>

#include <dtrain/data/in_memory.h>
#include <dtrain/dtrain.h>

#include "compute_models.h"
#include "resnet18.h"
#include "stepper.h"

namespace {

namespace F = torch::nn::functional;
using dtrain::data::ElementType;
using dtrain::data::InMemoryDataset;

constexpr std::int64_t kClasses = 1000;
constexpr std::int64_t kSamples = 2048;

// Random integers from 0 to `high` - 1.
template <typename T>
void fill(std::span<std::byte> bytes, std::int64_t high, std::mt19937_64& generator) {
  std::uniform_int_distribution<std::int64_t> any(0, high - 1);
  T* const values = reinterpret_cast<T*>(bytes.data());
  std::generate_n(values, bytes.size() / sizeof(T), [&] { return static_cast<T>(any(generator)); });
}

class Workload {
 public:
  virtual ~Workload() = default;
  virtual std::shared_ptr<dtrain::data::Dataset> data() const = 0;
  virtual torch::Tensor loss(const dtrain::Batch& batch) = 0;
};

class GptWorkload final : public Workload {
 public:
  explicit GptWorkload(dtrain::TrialContext& context)
      : sizes_{.tokens = context.hyperparameter<std::int64_t>("tokens"),
               .length = context.hyperparameter<std::int64_t>("length"),
               .layers = context.hyperparameter<std::int64_t>("layers"),
               .heads = context.hyperparameter<std::int64_t>("heads"),
               .width = context.hyperparameter<std::int64_t>("width")},
        model_(context.wrap_model(dtrain::bench::Gpt(sizes_))) {}
  std::shared_ptr<dtrain::data::Dataset> data() const override {
    auto data =
        InMemoryDataset::allocate("bench-compute", kSamples, {{"tokens", ElementType::kInt64, {sizes_.length + 1}}});
    std::mt19937_64 generator(1);
    fill<std::int64_t>(data.column(0), sizes_.tokens, generator);
    return std::make_shared<InMemoryDataset>(std::move(data));
  }
  torch::Tensor loss(const dtrain::Batch& batch) override {
    const auto& tokens = batch["tokens"];
    const auto scores = model_(tokens.narrow(1, 0, sizes_.length));
    return F::cross_entropy(scores.flatten(0, 1), tokens.narrow(1, 1, sizes_.length).flatten());
  }

 private:
  const dtrain::bench::GptSizes sizes_;
  dtrain::bench::Gpt model_;
};

class ResNetWorkload final : public Workload {
 public:
  explicit ResNetWorkload(dtrain::TrialContext& context) : model_(context.wrap_model(ResNet18(kClasses))) {}
  std::shared_ptr<dtrain::data::Dataset> data() const override {
    auto data = InMemoryDataset::allocate(
        "bench-compute", kSamples, {{"image", ElementType::kUint8, {3, 64, 64}}, {"label", ElementType::kInt64, {}}});
    std::mt19937_64 generator(1);
    fill<std::uint8_t>(data.column(0), 256, generator);
    fill<std::int64_t>(data.column(1), kClasses, generator);
    return std::make_shared<InMemoryDataset>(std::move(data));
  }
  torch::Tensor loss(const dtrain::Batch& batch) override {
    return F::cross_entropy(model_(batch["image"].to(torch::kFloat).sub_(127.5).div_(64.0)), batch["label"]);
  }

 private:
  ResNet18 model_;
};

std::unique_ptr<Workload> make_workload(dtrain::TrialContext& context) {
  const auto name = context.hyperparameter<std::string>("model");
  if (name == "gpt") return std::make_unique<GptWorkload>(context);
  if (name == "resnet18") return std::make_unique<ResNetWorkload>(context);
  throw dtrain::ConfigError("hyperparameters.model is '" + name + "'", "use gpt or resnet18");
}

class ComputeTrial : public dtrain::Trial {
 public:
  explicit ComputeTrial(dtrain::TrialContext& context) : context_(context), workload_(make_workload(context)) {
    context.wrap_optimizer(dtrain::AdamW{});
  }

  dtrain::Loader training_loader() override {
    const std::string base = context_.data().at("fifo").get<std::string>() + std::to_string(context_.rank());
    return std::make_shared<dtrain::bench::SteppedSource>(context_.loader(workload_->data()), base + ".commands",
                                                          base + ".replies");
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto loss = workload_->loss(batch);
    context_.backward(loss);
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  dtrain::TrialContext& context_;
  std::unique_ptr<Workload> workload_;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<ComputeTrial>(argc, argv);
}
