// The order in which an epoch takes the samples of a data set: a permutation that is a pure function of (data set,
// seed, epoch), the same on every machine. So a run continues within an epoch from a position, which is one number.
//
// Permutations. One of up to kListed numbers is drawn once and kept (Fisher-Yates: every order is equally likely). A
// larger one is computed number by number and takes no memory: a Feistel network (Luby and Rackoff 1988) permutes all
// numbers that have as many bits as the size, and a result beyond the size is permuted again until it is below the size
// (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). That takes less than one extra
// permutation on average. Luby and Rackoff need 4 rounds for a good permutation of large domains; small domains need
// more (Patarin 2004), and NIST's FF3 for domains as small as these takes 8, as we do. In the test of
// tests/data/epoch_order_test.cpp results look random from 6 rounds on, and do not with 4.
//
// Blocks. Where a data set says how its samples lie together (Dataset::blocks()), the order keeps reads of a disk
// large: the blocks are permuted, as many of them as fit the shuffle window are taken together, and the samples of
// these are permuted. A data set within one window is permuted as a whole.
//
// Immutable; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// 0 … size-1 shuffled: Fisher-Yates from the end, with random numbers from splitmix64 and Lemire's unbiased bound.
// std::shuffle is not used because its order depends on the standard library.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

// A permutation of the numbers 0 … size-1.
class Permutation {
 public:
  static constexpr std::int64_t kListed = 1 << 16;
  static constexpr int kRounds = 8;

  // Makes an unshuffled order: number i is at position i.
  explicit Permutation(std::int64_t size) : size_(size) {}
  // Shuffled. `size` is at least 1. `rounds` of the Feistel network, even, at most kRounds: for tests.
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch, int rounds = kRounds);

  std::int64_t size() const { return size_; }
  // The number at `position`, from 0 to size() - 1.
  std::int64_t at(std::int64_t position) const;

 private:
  std::uint64_t permute(std::uint64_t value) const;

  std::int64_t size_;
  int rounds_ = kRounds;
  std::vector<std::int64_t> list_;    // up to kListed numbers
  int low_bits_ = 0, high_bits_ = 0;  // 0: not shuffled, or kept in list_
  std::array<std::uint64_t, kRounds> keys_{};
};

// The blocks of a data set, and how many are shuffled together. Made once for all epochs.
class BlockTable {
 public:
  static constexpr std::int64_t kMostBlocks = 1 << 16;
  static constexpr std::int64_t kWindowBytes = 512 << 20;

  // Without blocks in `blocks`, one block has all samples. If there are more than kMostBlocks, adjacent blocks are
  // joined. DataError: the blocks do not add up to `size`.
  BlockTable(std::int64_t size, const Blocks& blocks, std::int64_t window_bytes = kWindowBytes);

  std::int64_t size() const { return first_.back(); }
  std::int64_t count() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  std::int64_t first(std::int64_t block) const { return first_[static_cast<std::size_t>(block)]; }
  std::int64_t samples(std::int64_t block) const { return first(block + 1) - first(block); }
  std::int64_t together() const { return together_; }  // blocks in one window
  bool is_one_window() const { return count() <= together_; }
  // True if the data set has named blocks, so that reading them ahead pays off.
  bool has_blocks() const { return has_blocks_; }
  // A short text of all that determines the order besides seed and epoch. Orders with different texts differ.
  std::string text() const;

 private:
  std::vector<std::int64_t> first_;  // sample of each block, and at the end the number of samples
  std::int64_t together_ = 1;
  bool has_blocks_ = false;
};

class EpochOrder {
 public:
  // Makes the order of the data set, without shuffling.
  explicit EpochOrder(std::shared_ptr<const BlockTable> table);
  EpochOrder(std::shared_ptr<const BlockTable> table, std::uint64_t seed, std::int64_t epoch);

  std::int64_t size() const { return table_->size(); }
  // The samples at `count` positions from `first` on.
  std::vector<std::int64_t> take(std::int64_t first, std::int64_t count) const;
  std::int64_t at(std::int64_t position) const { return take(position, 1).front(); }

  // The blocks in the order in which windows take them. begin(index) is the position at which a block would begin if
  // windows did not mix their blocks.
  struct Run {
    std::int64_t first = 0;  // sample
    std::int64_t samples = 0;
  };
  std::int64_t blocks() const { return table_->count(); }
  Run block(std::int64_t index) const;
  std::int64_t begin(std::int64_t index) const { return begin_of(index); }
  // The index of the first block of the window that has this position.
  std::int64_t window_block(std::int64_t position) const;
  // Positions of the window that has this position.
  std::int64_t window_size(std::int64_t position) const;

 private:
  struct Window {
    std::int64_t number = -1;
    std::int64_t begin = 0, end = 0;  // positions
    std::shared_ptr<const Permutation> order;
  };
  std::int64_t begin_of(std::int64_t index) const;
  std::int64_t block_number(std::int64_t index) const;
  Window window_at(std::int64_t position) const;
  std::int64_t sample_in(const Window& window, std::int64_t offset) const;

  std::shared_ptr<const BlockTable> table_;
  bool shuffled_ = false;
  std::uint64_t seed_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<std::int32_t> order_;  // of the blocks; empty: that of the data set
  std::vector<std::int64_t> begin_;  // position at which each begins, and the number of samples; empty with order_
  mutable std::mutex mutex_;         // guards `last_`
  mutable Window last_;              // the window that was asked for last
};

// The sampler determines the samples of each rank: a pure function of (seed, epoch, position, sizes). So a run can
// continue within an epoch without a stored random generator, and ranks need not communicate about the order.
//
// The order of an epoch is one permutation of the data set, the same on all ranks. A run walks through
// it in global batches of world_size * batch_size samples. Rank r takes the r-th contiguous piece of each. So W ranks
// with batches of B see the same global batches as one rank with batches of W * B, and a run continues from a position
// with any number of ranks and any batch size.
struct SamplerOptions {
  std::int64_t batch_size = 1;  // of this rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  // true: only full global batches; the rest of the epoch is skipped. false: the last global batch may be short. It is
  // divided evenly: ranks differ by at most one sample and at most one batch.
  bool drop_last = true;
  std::uint64_t seed = 0;
  // With drop_last false: the short last global batch is not divided evenly, but makes batches of batch_size and a
  // short one. So the batches do not depend on the number of ranks: batch k of the order is on rank k mod world_size.
  bool whole_batches = false;
};

class Sampler {
 public:
  // DataError if an option is invalid, or if drop_last is set and the data set is smaller than a global batch.
  Sampler(std::shared_ptr<const BlockTable> table, const SamplerOptions& options);

  EpochOrder order(std::int64_t epoch) const;
  // This rank's part of the global batch that begins at `position`, at most size(): positions of the order.
  struct Part {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  Part part(std::int64_t position) const;

  // Batches of this rank from `position` on, to the end of the epoch.
  std::int64_t batches_from(std::int64_t position) const;
  std::int64_t samples_per_epoch() const;  // of all ranks together
  std::int64_t global_batch() const { return options_.world_size * options_.batch_size; }
  std::int64_t size() const { return table_->size(); }
  const BlockTable& blocks() const { return *table_; }

 private:
  std::shared_ptr<const BlockTable> table_;
  SamplerOptions options_;
};

}  // namespace dtrain::data
