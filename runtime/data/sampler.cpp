#include "dtrain/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "counter_random.h"
#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

constexpr std::uint64_t kEpochOrder = 0x6f72646572;  // "order": keeps this stream apart from others of the same seed

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  RandomStream random{kEpochOrder, seed, static_cast<std::uint64_t>(epoch)};
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

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

std::vector<std::int64_t> Sampler::order(std::int64_t epoch) const {
  if (options_.shuffle) return permutation(size_, options_.seed, epoch);
  std::vector<std::int64_t> order(static_cast<std::size_t>(size_));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::span<const std::int64_t> Sampler::batch(std::span<const std::int64_t> order, std::int64_t batch) const {
  const auto whole = size_ / global_batch();
  const auto start = batch * global_batch();
  if (batch < whole) {
    return order.subspan(static_cast<std::size_t>(start + options_.rank * options_.batch_size),
                         static_cast<std::size_t>(options_.batch_size));
  }
  // The short last global batch: everybody gets its floor share, the first ranks one more.
  const auto left = size_ - start;
  const auto share = left / options_.world_size;
  const auto more = left % options_.world_size;
  const auto before = options_.rank * share + std::min<std::int64_t>(options_.rank, more);
  return order.subspan(static_cast<std::size_t>(start + before),
                       static_cast<std::size_t>(share + (options_.rank < more ? 1 : 0)));
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
