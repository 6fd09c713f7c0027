#include "dtrain/data/sampler.h"

#include <algorithm>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::data {

Sampler::Sampler(std::int64_t dataset_size, const SamplerOptions& options) : size_(dataset_size), options_(options) {
  if (size_ < 1) throw DataError("the data set has " + std::to_string(size_) + " samples");
  std::int64_t global = 0;
  if (options_.batch_size < 1 || options_.world_size < 1 ||
      __builtin_mul_overflow(options_.batch_size, static_cast<std::int64_t>(options_.world_size), &global)) {
    throw DataError("batches of " + std::to_string(options_.batch_size) + " samples on " +
                    std::to_string(options_.world_size) + " ranks cannot be made");
  }
  if (options_.rank < 0 || options_.rank >= options_.world_size) {
    throw DataError("rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.world_size));
  }
  if (options_.drop_last && size_ < global) {
    throw DataError("the data set has " + std::to_string(size_) + " samples, less than one global batch of " +
                        std::to_string(global) + " (" + std::to_string(options_.batch_size) + " on each of " +
                        std::to_string(options_.world_size) + " ranks)",
                    "make hyperparameters.global_batch_size at most " + std::to_string(size_));
  }
}

EpochOrder Sampler::order(std::int64_t epoch) const {
  return options_.shuffle ? EpochOrder(size_, options_.seed, epoch) : EpochOrder(size_);
}

std::vector<std::int64_t> Sampler::batch(const EpochOrder& order, std::int64_t batch) const {
  std::int64_t start = batch * global_batch();
  std::int64_t count = options_.batch_size;
  if (batch < size_ / global_batch()) {
    start += options_.rank * options_.batch_size;
  } else {
    // The short last global batch: every rank gets the quotient, rounded down, and the first ranks one more.
    const auto left = size_ - start;
    const auto share = left / options_.world_size;
    const auto more = left % options_.world_size;
    start += options_.rank * share + std::min<std::int64_t>(options_.rank, more);
    count = share + (options_.rank < more ? 1 : 0);
  }
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = start; i < start + count; ++i) samples.push_back(order.at(i));
  return samples;
}

std::int64_t Sampler::batches_per_epoch() const {
  const auto whole = size_ / global_batch();
  const auto left = size_ % global_batch();
  return whole + (!options_.drop_last && left > options_.rank ? 1 : 0);
}

std::int64_t Sampler::samples_per_epoch() const {
  return options_.drop_last ? size_ / global_batch() * global_batch() : size_;
}

}  // namespace dtrain::data
