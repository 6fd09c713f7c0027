// The models of gpu_trial.cpp, and batches for them. Both are the same on every device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <dtrain/dtrain.h>

namespace dtrain::test {

// What a trial asks of a model.
class GpuModel : public torch::nn::Module {
 public:
  // Nothing in it may wait for a GPU.
  virtual torch::Tensor loss(const Batch& batch) = 0;
  // One batch: floats, if any, are of type `floats`.
  virtual Batch make_batch(std::int64_t samples, at::ScalarType floats, at::Generator& generator) const = 0;

  bool checkpointed = false;  // "gpt": whether its blocks are computed again in backward
};

// "mlp", "normed_mlp" (layer normalization in float32; a batch of a file has a weight, and
// a spike that is the gradient of one parameter), "cnn" (batch normalization,
// dropout), "gpt" (attention, dropout 0.5, a weight that embedding and output share, layer normalization) or "odd"
// (tied, unused, sometimes used, frozen and strided parameters, two types), with sparse gradients of an embedding if
// `sparse`; parameters are of type `floats`. ConfigError for other names.
std::shared_ptr<GpuModel> make_gpu_model(const std::string& name, at::ScalarType floats, bool sparse);

// As many batches an epoch as it is told, made of (seed, rank, epoch, number); the last one is smaller.
class GeneratedBatches final : public BatchSource {
 public:
  struct Options {
    std::uint64_t seed = 0;
    int rank = 0;
    std::int64_t batches = 0;
    std::int64_t samples = 0;  // of a batch
    at::ScalarType floats = at::kFloat;
  };
  GeneratedBatches(std::shared_ptr<const GpuModel> model, const Options& options);
  void start_epoch(std::int64_t epoch) override { start_epoch_at(epoch, 0); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override;
  std::optional<Batch> next() override;
  std::optional<std::int64_t> batches_per_epoch() const override { return options_.batches; }

 private:
  const std::shared_ptr<const GpuModel> model_;
  const Options options_;
  std::int64_t epoch_ = 0, next_ = 0;
};

// The batches of a source, with numbers of libtorch's generator added to their floats: one drawn when it is made, one
// at the start of the epoch, and one for each batch of the epoch up to this one.
class DrawingBatches final : public BatchSource {
 public:
  explicit DrawingBatches(Loader source);
  void start_epoch(std::int64_t epoch) override;
  std::optional<Batch> next() override;
  std::optional<std::int64_t> batches_per_epoch() const override { return source_->batches_per_epoch(); }

 private:
  const Loader source_;
  const double of_source_;
  double level_ = 0;
};

}  // namespace dtrain::test
