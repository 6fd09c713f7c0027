#include "dtrain/data/sampler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {

Sampler::Sampler(std::shared_ptr<const BlockTable> table, const SamplerOptions& options)
    : table_(std::move(table)), options_(options) {
  if (size() < 1) throw DataError("the data set has " + std::to_string(size()) + " samples");
  std::int64_t global = 0;
  if (options_.batch_size < 1 || options_.world_size < 1 ||
      __builtin_mul_overflow(options_.batch_size, static_cast<std::int64_t>(options_.world_size), &global)) {
    throw DataError("batches of " + std::to_string(options_.batch_size) + " samples on " +
                    std::to_string(options_.world_size) + " ranks cannot be made");
  }
  if (options_.rank < 0 || options_.rank >= options_.world_size) {
    throw DataError("rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.world_size));
  }
  if (options_.drop_last && size() < global) {
    throw DataError("the data set has " + std::to_string(size()) + " samples, less than one global batch of " +
                        std::to_string(global) + " (" + std::to_string(options_.batch_size) + " on each of " +
                        std::to_string(options_.world_size) + " ranks)",
                    "make hyperparameters.global_batch_size at most " + std::to_string(size()));
  }
}

EpochOrder Sampler::order(std::int64_t epoch) const {
  return options_.shuffle ? EpochOrder(table_, options_.seed, epoch) : EpochOrder(table_);
}

Sampler::Part Sampler::part(std::int64_t position) const {
  const std::int64_t left = std::max<std::int64_t>(0, size() - position);
  if (left >= global_batch()) return {position + options_.rank * options_.batch_size, options_.batch_size};
  if (options_.drop_last) return {position, 0};
  // In the short last global batch, every rank gets the quotient, rounded down, and the first ranks get one more.
  const std::int64_t share = left / options_.world_size;
  const std::int64_t more = left % options_.world_size;
  return {position + options_.rank * share + std::min<std::int64_t>(options_.rank, more),
          share + (options_.rank < more ? 1 : 0)};
}

std::int64_t Sampler::batches_from(std::int64_t position) const {
  const std::int64_t ahead = std::max<std::int64_t>(0, size() - position);
  const std::int64_t left = ahead % global_batch();
  return ahead / global_batch() + (!options_.drop_last && left > options_.rank ? 1 : 0);
}

std::int64_t Sampler::samples_per_epoch() const {
  return options_.drop_last ? size() / global_batch() * global_batch() : size();
}

}  // namespace dtrain::data
