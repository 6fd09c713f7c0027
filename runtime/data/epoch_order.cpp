#include "dtrain/data/epoch_order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

// Names that distinguish these streams from others of the same seed.
constexpr std::uint64_t kEpochOrder = 0x6f72646572;    // "order"
constexpr std::uint64_t kBlockOrder = 0x626c6f636b73;  // "blocks"
constexpr std::uint64_t kWindow = 0x77696e646f77;      // "window"

constexpr std::uint64_t lowest_bits(std::uint64_t value, int bits) {
  return value & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  RandomStream random{kEpochOrder, seed, static_cast<std::uint64_t>(epoch)};
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch, int rounds)
    : size_(size), rounds_(rounds) {
  if (size <= kListed) {
    list_ = permutation(size, seed, epoch);
    return;
  }
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size) - 1));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  RandomStream random{kEpochOrder, seed, static_cast<std::uint64_t>(epoch)};
  for (std::uint64_t& key : keys_) key = random.next();
}

std::uint64_t Permutation::permute(std::uint64_t value) const {
  // Each round changes one part by a function of the other, so it is invertible: no two numbers become the same.
  std::uint64_t low = lowest_bits(value, low_bits_);
  std::uint64_t high = value >> low_bits_;
  for (int round = 0; round < rounds_; round += 2) {
    high ^= lowest_bits(mix64(low ^ keys_[static_cast<std::size_t>(round)]), high_bits_);
    low ^= lowest_bits(mix64(high ^ keys_[static_cast<std::size_t>(round) + 1]), low_bits_);
  }
  return high << low_bits_ | low;
}

std::int64_t Permutation::at(std::int64_t position) const {
  if (!list_.empty()) return list_[static_cast<std::size_t>(position)];
  if (high_bits_ == 0) return position;
  std::uint64_t value = static_cast<std::uint64_t>(position);
  do {
    value = permute(value);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

BlockTable::BlockTable(std::int64_t size, const Blocks& blocks, std::int64_t window_bytes)
    : has_blocks_(!blocks.samples.empty()) {
  first_ = {0};
  if (!has_blocks_) {
    first_.push_back(size);
    return;
  }
  const auto named = static_cast<std::int64_t>(blocks.samples.size());
  const std::int64_t joined = (named + kMostBlocks - 1) / kMostBlocks;  // adjacent blocks that are joined to one
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < named; ++i) {
    const std::int64_t samples = blocks.samples[static_cast<std::size_t>(i)];
    if (samples < 0 || __builtin_add_overflow(total, samples, &total)) {
      throw DataError("block " + std::to_string(i) + " of the data set has " + std::to_string(samples) + " samples");
    }
    const bool is_last_of_block = (i + 1) % joined == 0 || i + 1 == named;
    if (is_last_of_block && total > first_.back()) first_.push_back(total);  // empty blocks are skipped
  }
  if (total != size) {
    throw DataError("the blocks of the data set have " + std::to_string(total) + " samples, but it has " +
                    std::to_string(size));
  }
  const std::int64_t bytes = std::max<std::int64_t>(1, blocks.bytes) * joined;
  together_ = std::max<std::int64_t>(1, window_bytes / bytes);
}

std::string BlockTable::text() const {
  if (is_one_window()) return std::to_string(size()) + " samples in one window";
  std::uint64_t sum = 0;  // hash of the begins of all blocks
  for (const std::int64_t first : first_) sum = mix64(sum + kGoldenGamma + static_cast<std::uint64_t>(first));
  return std::to_string(size()) + " samples in " + std::to_string(count()) + " blocks (" + std::to_string(sum) + "), " +
         std::to_string(together_) + " of them in a window";
}

EpochOrder::EpochOrder(std::shared_ptr<const BlockTable> table) : table_(std::move(table)) {}

EpochOrder::EpochOrder(std::shared_ptr<const BlockTable> table, std::uint64_t seed, std::int64_t epoch)
    : table_(std::move(table)), shuffled_(true), seed_(seed), epoch_(epoch) {
  if (table_->is_one_window()) return;
  RandomStream random{kBlockOrder, seed};
  const Permutation blocks(table_->count(), random.next(), epoch);
  order_.reserve(static_cast<std::size_t>(table_->count()));
  begin_.reserve(order_.capacity() + 1);
  begin_.push_back(0);
  for (std::int64_t i = 0; i < table_->count(); ++i) {
    order_.push_back(static_cast<std::int32_t>(blocks.at(i)));
    begin_.push_back(begin_.back() + table_->samples(order_.back()));
  }
}

std::int64_t EpochOrder::begin_of(std::int64_t index) const {
  return begin_.empty() ? table_->first(index) : begin_[static_cast<std::size_t>(index)];
}

std::int64_t EpochOrder::block_number(std::int64_t index) const {
  return order_.empty() ? index : order_[static_cast<std::size_t>(index)];
}

EpochOrder::Run EpochOrder::block(std::int64_t index) const {
  const std::int64_t number = block_number(index);
  return {table_->first(number), table_->samples(number)};
}

std::int64_t EpochOrder::window_block(std::int64_t position) const {
  std::int64_t low = 0, high = blocks();  // the last block that begins at or before the position
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (begin_of(middle) <= position ? low : high) = middle;
  }
  return low / table_->together() * table_->together();
}

std::int64_t EpochOrder::window_size(std::int64_t position) const {
  const std::int64_t block = window_block(position);
  return begin_of(std::min(block + table_->together(), blocks())) - begin_of(block);
}

EpochOrder::Window EpochOrder::window_at(std::int64_t position) const {
  const std::lock_guard lock(mutex_);
  if (last_.number >= 0 && position >= last_.begin && position < last_.end) return last_;
  const std::int64_t block = window_block(position);
  last_.number = block / table_->together();
  last_.begin = begin_of(block);
  last_.end = begin_of(std::min(block + table_->together(), blocks()));
  // For a data set within one window the order is permutation(size, seed, epoch).
  const std::uint64_t seed =
      last_.number == 0 ? seed_ : RandomStream{kWindow, seed_, static_cast<std::uint64_t>(last_.number)}.next();
  last_.order = std::make_shared<const Permutation>(last_.end - last_.begin, seed, epoch_);
  return last_;
}

std::int64_t EpochOrder::sample_in(const Window& window, std::int64_t offset) const {
  if (order_.empty()) return window.begin + offset;  // consecutive blocks in the order of the data set
  const std::int64_t position = window.begin + offset;
  const std::int64_t from = window.number * table_->together();
  const std::int64_t to = std::min(from + table_->together(), blocks());
  const auto begin = begin_.begin();
  const auto behind =
      std::upper_bound(begin + from, begin + to, position);  // the first block that begins after the position
  const std::int64_t index = behind - begin - 1;
  return table_->first(block_number(index)) + position - begin_of(index);
}

std::vector<std::int64_t> EpochOrder::take(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(count));
  if (!shuffled_) {
    samples.resize(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    return samples;
  }
  for (std::int64_t position = first; position < first + count;) {
    const Window window = window_at(position);
    const std::int64_t end = std::min(window.end, first + count);
    for (; position < end; ++position) samples.push_back(sample_in(window, window.order->at(position - window.begin)));
  }
  return samples;
}

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
  if (options_.whole_batches) {
    const std::int64_t before = std::min(left, options_.rank * options_.batch_size);
    return {position + before, std::min(left - before, options_.batch_size)};
  }
  // In the short last global batch, every rank gets the quotient, rounded down, and the first ranks get one more.
  const std::int64_t share = left / options_.world_size;
  const std::int64_t more = left % options_.world_size;
  return {position + options_.rank * share + std::min<std::int64_t>(options_.rank, more),
          share + (options_.rank < more ? 1 : 0)};
}

std::int64_t Sampler::batches_from(std::int64_t position) const {
  const std::int64_t ahead = std::max<std::int64_t>(0, size() - position);
  const std::int64_t left = ahead % global_batch();
  const std::int64_t before = options_.rank * (options_.whole_batches ? options_.batch_size : 1);
  return ahead / global_batch() + (!options_.drop_last && left > before ? 1 : 0);
}

std::int64_t Sampler::samples_per_epoch() const {
  return options_.drop_last ? size() / global_batch() * global_batch() : size();
}

}  // namespace dtrain::data
