#include "loop/mock_loader.h"

#include <utility>

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

}  // namespace dtrain::train
