#include "dtrain/data/epoch_order.h"

#include <bit>
#include <numeric>
#include <utility>

#include "dtrain/data/random_stream.h"

namespace dtrain::data {

namespace {

constexpr std::uint64_t kEpochOrder = 0x6f72646572;  // "order": keeps this stream apart from others of the same seed

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

EpochOrder::EpochOrder(std::int64_t size, std::uint64_t seed, std::int64_t epoch) : size_(size) {
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

std::uint64_t EpochOrder::permute(std::uint64_t value) const {
  // Each round changes one part by a function of the other, so it can be undone: no two numbers become the same.
  std::uint64_t low = lowest_bits(value, low_bits_);
  std::uint64_t high = value >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high ^= lowest_bits(mix64(low ^ keys_[static_cast<std::size_t>(round)]), high_bits_);
    low ^= lowest_bits(mix64(high ^ keys_[static_cast<std::size_t>(round) + 1]), low_bits_);
  }
  return high << low_bits_ | low;
}

std::int64_t EpochOrder::at(std::int64_t position) const {
  if (!list_.empty()) return list_[static_cast<std::size_t>(position)];
  if (high_bits_ == 0) return position;
  std::uint64_t value = static_cast<std::uint64_t>(position);
  do {
    value = permute(value);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace dtrain::data
