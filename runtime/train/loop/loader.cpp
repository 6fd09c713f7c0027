#include "loop/loader.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain {

const at::Tensor& Batch::operator[](const std::string& name) const {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return tensors[i];
  }
  throw DataError("the batch has no field '" + name + "'", "its fields are: " + join(names, ", "));
}

namespace {

at::ScalarType scalar_type(data::ElementType type) {
  constexpr at::ScalarType kTypes[] = {at::kByte, at::kInt, at::kLong, at::kFloat, at::kDouble};
  return kTypes[static_cast<std::size_t>(type)];
}

// Gives a SampleLoader's memory as tensors without a copy: each tensor holds on to its part of the batch.
class DatasetBatches final : public BatchSource {
 public:
  DatasetBatches(std::shared_ptr<const data::Dataset> dataset, const data::LoaderOptions& options)
      : loader_(std::move(dataset), options),
        global_batch_(options.batch_size * options.world_size),
        may_skip_(options.skip_damaged) {
    for (const auto& field : loader_.dataset().fields()) names_.push_back(field.name);
  }

  void start_epoch(std::int64_t epoch) override { loader_.start_epoch(epoch); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override {
    loader_.start_epoch(epoch, batches * global_batch_);
  }

  std::string position() const override { return loader_.state().text(); }
  std::string go_on_from(const std::string& position) override {
    const data::LoaderState before = data::LoaderState::parse(position);
    const data::LoaderState here = loader_.state();
    if (before.order == here.order && before.seed == here.seed) {
      loader_.restore(before);
      return {};
    }
    loader_.start_epoch(before.epoch, before.position);
    return "the samples had the order of " + before.order + ", seed " + std::to_string(before.seed) +
           ", and have that of " + here.order + ", seed " + std::to_string(here.seed) + " now";
  }
  bool order_has_changed() const override { return loader_.is_in_windows(); }
  std::optional<std::int64_t> batches_left() const override { return loader_.batches_left(); }

  std::optional<Batch> next() override {
    auto host = loader_.next();
    if (!host) return std::nullopt;
    Batch batch{.names = names_,
                .samples = host->samples,
                .global_samples = host->global_samples,
                .fetch_ns = host->usage.time_ns};
    batch.usage = host->usage;
    batch.skipped = std::move(host->skipped);
    const auto& fields = loader_.dataset().fields();
    for (std::size_t f = 0; f < fields.size(); ++f) {
      std::vector<std::int64_t> shape{host->samples};
      shape.insert(shape.end(), host->shapes[f].begin(), host->shapes[f].end());
      batch.tensors.push_back(at::from_blob(
          host->fields[f].get(), shape, [memory = host->fields[f]](void*) {},
          at::TensorOptions().dtype(scalar_type(fields[f].type))));
    }
    return batch;
  }

  std::optional<std::int64_t> batches_per_epoch() const override { return loader_.batches_per_epoch(); }
  std::optional<std::int64_t> samples_per_epoch() const override { return loader_.samples_per_epoch(); }
  bool may_skip() const override { return may_skip_; }
  std::int32_t queue_depth() const override { return loader_.queue_depth(); }
  std::int32_t workers() const override { return loader_.workers(); }

 private:
  data::SampleLoader loader_;
  const std::int64_t global_batch_;
  const bool may_skip_;
  std::vector<std::string> names_;
};

}  // namespace

Loader make_loader(std::shared_ptr<const data::Dataset> dataset, const data::LoaderOptions& options) {
  return std::make_shared<DatasetBatches>(std::move(dataset), options);
}

}  // namespace dtrain

namespace dtrain::train {
namespace {

class RepeatedBatch final : public BatchSource {
 public:
  explicit RepeatedBatch(Loader source) : source_(std::move(source)) {}

  void start_epoch(std::int64_t epoch) override {
    if (!batch_) {
      source_->start_epoch(epoch);
      if ((batch_ = source_->next())) batch_->fetch_ns = -1;  // the batch is not read from disk again
    }
    given_ = 0;
  }

  std::optional<Batch> next() override {
    const auto length = source_->batches_per_epoch();
    if (length && given_ >= *length) return std::nullopt;
    ++given_;
    return batch_;
  }

  std::optional<std::int64_t> batches_per_epoch() const override { return source_->batches_per_epoch(); }
  std::optional<std::int64_t> samples_per_epoch() const override { return source_->samples_per_epoch(); }
  std::int32_t queue_depth() const override { return 1; }  // the batch is always ready
  std::int32_t workers() const override { return 0; }

 private:
  const Loader source_;
  std::optional<Batch> batch_;
  std::int64_t given_ = 0;
};

}  // namespace

Loader repeat_first_batch(Loader source) {
  return std::make_shared<RepeatedBatch>(std::move(source));
}

void SkippedSamples::see(const Batch& batch) {
  for (const data::SkippedSample& sample : batch.skipped) {
    if (++count_ > kNamed) return;
    session_.log()->warn("{}: left out a damaged sample: {}", what_, sample.damage);
    if (count_ == kNamed) session_.log()->warn("{}: further samples that are left out are only counted", what_);
  }
}

void SkippedSamples::add_metric(const BatchSource& source, const Batch& batch, Metrics& metrics) {
  if (!source.may_skip()) return;
  metrics.insert_or_assign(kMetric, MetricValue(static_cast<double>(batch.skipped.size()), Reduction::kSum));
}

}  // namespace dtrain::train
