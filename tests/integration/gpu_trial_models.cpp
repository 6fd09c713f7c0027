#include "gpu_trial_models.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace dtrain::test {

namespace {

namespace F = torch::nn::functional;

constexpr std::int64_t kClasses = 10;

torch::Tensor uniform(at::IntArrayRef sizes, at::ScalarType type, at::Generator& generator) {
  return torch::rand(sizes, generator, at::TensorOptions().dtype(at::kDouble)).sub_(0.5).to(type);
}

torch::Tensor integers(std::int64_t high, at::IntArrayRef sizes, at::Generator& generator) {
  return torch::randint(0, high, sizes, generator, at::TensorOptions().dtype(at::kLong));
}

class Mlp final : public GpuModel {
 public:
  Mlp()
      : first_(register_module("first", torch::nn::Linear(32, 64))),
        second_(register_module("second", torch::nn::Linear(64, 64))),
        out_(register_module("out", torch::nn::Linear(64, kClasses))) {}
  torch::Tensor loss(const Batch& batch) override {
    return F::cross_entropy(out_(second_(first_(batch["x"]).relu()).relu()), batch["y"]);
  }
  Batch make_batch(std::int64_t samples, at::ScalarType floats, at::Generator& generator) const override {
    auto x = uniform({samples, 32}, floats, generator);
    return {{"x", "y"}, {x, integers(kClasses, {samples}, generator)}, samples};
  }

 private:
  torch::nn::Linear first_, second_, out_;
};

// Autocast casts other operators on GPUs than on CPUs. Here it is the same, for the model says what is float32. The
// same in Python: loss_scaling.py.
class NormedMlp final : public GpuModel {
 public:
  NormedMlp()
      : spiked_(register_parameter("spiked", torch::randn({16}))),
        first_(register_module("first", torch::nn::Linear(32, 64))),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})))),
        second_(register_module("second", torch::nn::Linear(64, 64))),
        out_(register_module("out", torch::nn::Linear(64, kClasses))) {}
  torch::Tensor loss(const Batch& batch) override {
    const auto x = norm_(first_(batch["x"]).relu().to(at::kFloat));
    const auto loss = F::cross_entropy(out_(second_(x).relu()).to(at::kFloat), batch["y"]);
    if (std::find(batch.names.begin(), batch.names.end(), "weight") == batch.names.end()) return loss;
    const auto zero = (spiked_ * batch["spike"][0]).sum();
    return loss * batch["weight"][0] + (zero - zero.detach());
  }
  Batch make_batch(std::int64_t samples, at::ScalarType floats, at::Generator& generator) const override {
    auto x = uniform({samples, 32}, floats, generator);
    return {{"x", "y"}, {x, integers(kClasses, {samples}, generator)}, samples};
  }

 private:
  torch::Tensor spiked_;
  torch::nn::Linear first_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear second_, out_;
};

// Images as bytes, which the device makes floats of.
class Cnn final : public GpuModel {
 public:
  Cnn()
      : conv_(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1).bias(false)))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(8))),
        fc_(register_module("fc", torch::nn::Linear(8 * 4 * 4, 32))),
        out_(register_module("out", torch::nn::Linear(32, kClasses))) {}
  torch::Tensor loss(const Batch& batch) override {
    auto x = batch["image"].to(out_->weight.scalar_type()).sub_(127.5).div_(64.0);
    x = F::max_pool2d(norm_(conv_(x)).relu(), F::MaxPool2dFuncOptions(2));
    x = F::dropout(fc_(x.flatten(1)).relu(), F::DropoutFuncOptions().p(0.25).training(is_training()));
    return F::cross_entropy(out_(x), batch["y"]);
  }
  Batch make_batch(std::int64_t samples, at::ScalarType, at::Generator& generator) const override {
    auto image = integers(256, {samples, 1, 8, 8}, generator).to(at::kByte);
    return {{"image", "y"}, {image, integers(kClasses, {samples}, generator)}, samples};
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Linear fc_, out_;
};

constexpr std::int64_t kTokens = 40, kLength = 12, kWidth = 24, kHeads = 3;

class BlockImpl final : public torch::nn::Module {
 public:
  BlockImpl()
      : before_attention_(register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        before_mlp_(register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv_(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        project_(register_module("project", torch::nn::Linear(kWidth, kWidth))),
        wide_(register_module("wide", torch::nn::Linear(kWidth, 2 * kWidth))),
        narrow_(register_module("narrow", torch::nn::Linear(2 * kWidth, kWidth))),
        mask_(register_buffer("mask", torch::full({kLength, kLength}, -1e9).triu(1))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + drop(attention(before_attention_(x)));
    return x + drop(narrow_(torch::gelu(wide_(before_mlp_(x)))));
  }

 private:
  torch::Tensor drop(const torch::Tensor& x) const {
    return F::dropout(x, F::DropoutFuncOptions().p(0.5).training(is_training()));
  }
  torch::Tensor attention(const torch::Tensor& x) {
    const std::int64_t samples = x.size(0);
    const auto parts = qkv_(x).view({samples, kLength, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(double{kWidth} / kHeads);
    const auto weights = drop((scores + mask_).softmax(-1));
    return project_(weights.matmul(parts[2]).transpose(1, 2).reshape({samples, kLength, kWidth}));
  }
  torch::nn::LayerNorm before_attention_, before_mlp_;
  torch::nn::Linear qkv_, project_, wide_, narrow_;
  torch::Tensor mask_;
};
TORCH_MODULE(Block);

class Gpt final : public GpuModel {
 public:
  Gpt()
      : tokens_(register_module("tokens", torch::nn::Embedding(kTokens, kWidth))),
        positions_(register_parameter("positions", torch::randn({kLength, kWidth}) * 0.1)),
        first_(register_module("first", Block())),
        second_(register_module("second", Block())),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        head_(register_parameter("head", tokens_->weight)) {}  // one tensor with two names
  torch::Tensor loss(const Batch& batch) override {
    auto x = F::dropout(tokens_(batch["tokens"]) + positions_, F::DropoutFuncOptions().p(0.5).training(is_training()));
    for (Block& block : {std::ref(first_), std::ref(second_)}) x = checkpointed ? checkpoint(block, x) : block(x);
    const auto scores = torch::linear(norm_(x), head_);
    return F::cross_entropy(scores.flatten(0, 1), batch["next"].flatten());
  }
  Batch make_batch(std::int64_t samples, at::ScalarType, at::Generator& generator) const override {
    auto tokens = integers(kTokens, {samples, kLength}, generator);
    return {{"tokens", "next"}, {tokens, integers(kTokens, {samples, kLength}, generator)}, samples};
  }

 private:
  torch::nn::Embedding tokens_;
  torch::Tensor positions_;
  Block first_, second_;
  torch::nn::LayerNorm norm_;
  torch::Tensor head_;
};

// `extra` is used by the batches that bring its inputs.
class Odd final : public GpuModel {
 public:
  explicit Odd(bool sparse)
      : words_(register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 6).sparse(sparse)))),
        one_(register_parameter("one", torch::randn({6, 6}) * 0.4)),
        other_(register_parameter("other", torch::randn({6, 6}))),
        strided_(register_parameter("strided", (torch::randn({7, 6}) * 0.4).t())),
        wide_(register_parameter("wide", torch::randn({7}, at::kDouble))),
        extra_(register_module("extra", torch::nn::Linear(3, 6))),
        out_(register_module("out", torch::nn::Linear(7, kClasses))) {
    register_parameter("never", torch::randn({5}));
    frozen_ = register_parameter("frozen", torch::rand({7}) + 0.5, /*requires_grad=*/false);
  }
  // Two tensors in the same memory, each with a gradient of its own. Not in the constructor: to(dtype) parts them.
  void tie() { other_.set_data(one_.detach()); }
  torch::Tensor loss(const Batch& batch) override {
    auto x = words_(batch["word"]);
    for (std::size_t i = 0; i < batch.names.size(); ++i) {
      if (batch.names[i] == "extra") x = x + extra_(batch.tensors[i]);
    }
    x = x.matmul(one_).relu().matmul(other_).relu().matmul(strided_) * frozen_;
    x = (x.to(at::kDouble) * wide_).to(x.scalar_type());
    return F::cross_entropy(out_(x), batch["y"]);
  }
  Batch make_batch(std::int64_t samples, at::ScalarType floats, at::Generator& generator) const override {
    Batch batch{{"word", "y"}, {integers(20, {samples}, generator), integers(kClasses, {samples}, generator)}, samples};
    if (integers(4, {1}, generator).item<std::int64_t>() == 0) {  // on some ranks, or on none
      batch.names.emplace_back("extra");
      batch.tensors.push_back(uniform({samples, 3}, floats, generator));
    }
    return batch;
  }

 private:
  torch::nn::Embedding words_;
  torch::Tensor one_, other_, strided_, wide_, frozen_;
  torch::nn::Linear extra_, out_;
};

}  // namespace

std::shared_ptr<GpuModel> make_gpu_model(const std::string& name, at::ScalarType floats, bool sparse) {
  if (name == "odd") {
    const auto odd = std::make_shared<Odd>(sparse);
    if (floats != at::kFloat) odd->to(floats);
    odd->tie();
    return odd;
  }
  std::shared_ptr<GpuModel> model;
  if (name == "mlp") model = std::make_shared<Mlp>();
  if (name == "normed_mlp") model = std::make_shared<NormedMlp>();
  if (name == "cnn") model = std::make_shared<Cnn>();
  if (name == "gpt") model = std::make_shared<Gpt>();
  if (!model) throw ConfigError("hyperparameters.model is '" + name + "'", "use mlp, normed_mlp, cnn, gpt or odd");
  if (floats != at::kFloat) model->to(floats);
  return model;
}

GeneratedBatches::GeneratedBatches(std::shared_ptr<const GpuModel> model, const Options& options)
    : model_(std::move(model)), options_(options) {}

void GeneratedBatches::start_epoch_at(std::int64_t epoch, std::int64_t batches) {
  epoch_ = epoch;
  next_ = std::min(batches, options_.batches);
}

std::optional<Batch> GeneratedBatches::next() {
  if (next_ == options_.batches) return std::nullopt;
  const auto number = static_cast<std::uint64_t>((epoch_ * 1000 + next_) * 1000 + options_.rank);
  auto generator = at::detail::createCPUGenerator(options_.seed * 1'000'000'000 + number);
  const bool last = ++next_ == options_.batches;
  return model_->make_batch(last ? options_.samples / 2 : options_.samples, options_.floats, generator);
}

namespace {

double draw() {
  return torch::rand({1}, at::kDouble).item<double>();
}

}  // namespace

DrawingBatches::DrawingBatches(Loader source) : source_(std::move(source)), of_source_(draw()) {}

void DrawingBatches::start_epoch(std::int64_t epoch) {
  source_->start_epoch(epoch);
  level_ = draw();
}

std::optional<Batch> DrawingBatches::next() {
  auto batch = source_->next();
  level_ = 0.5 * (level_ + draw());
  if (!batch) return std::nullopt;
  for (at::Tensor& tensor : batch->tensors) {
    if (tensor.is_floating_point()) tensor.add_(0.3 * (of_source_ + level_));
  }
  return batch;
}

}  // namespace dtrain::test
