// Sums gradients, or numbers, of logical ranks in the order of the fixed tree (dtrain/rank/rank_tree.h), with the same
// bits for any number of ranks. Training thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"
#include "dtrain/rank/rank_tree.h"
#include "run_services.h"

namespace dtrain::train {

// Exchanges what the ranks have of a sum over logical ranks, and completes the sum on each.
class TreeExchange {
 public:
  static constexpr std::size_t kExchangedAtOnce = 16 << 20;  // bytes of all ranks' parts

  // What each rank sends: the sums of its subtrees, or the values of its logical ranks. Both give the same bits.
  enum class Parts { kSubtrees, kLeaves };

  // The references outlive this object. `at_once`: the bytes that are exchanged at once, which do not matter for the
  // sums.
  TreeExchange(comm::Communicator& communicator, profile::Recorder& recorder, const rank::LogicalRanks& ranks,
               std::size_t at_once = kExchangedAtOnce);

  // Makes the last of this rank's parts the sum over all logical ranks. The parts lie in host memory, all of one type
  // and length. Values of 16 bits are leaves, which are summed in float32 and rounded once. Collective.
  void sum(Parts parts, std::span<const at::Tensor> own);
  // True if sum() of subtrees is an all-reduce, in which each rank has one part.
  bool is_all_reduce() const { return in_rank_order_; }
  // Begins that all-reduce. Collective.
  comm::Work begin_all_reduce(const at::Tensor& own, int bucket);
  // Copies what each logical rank has, `bytes` at its place in `all`, to all ranks. Collective.
  void gather(std::byte* all, std::size_t bytes);

  // The bytes that a rank sends for a sum over so many, counted as in comm::CompressionStatistics.
  double cost(Parts parts, std::size_t bytes) const;
  double cost_of_gather(std::size_t bytes) const;

  const rank::LogicalRanks& ranks() const { return ranks_; }

 private:
  const rank::TreeExchange& layout(Parts parts) const { return parts == Parts::kLeaves ? leaves_ : subtrees_; }
  // Exchanges the elements [first, first + count), and sums them.
  void exchange(const rank::TreeExchange& tree, std::span<const at::Tensor> own, std::int64_t first,
                std::int64_t count);
  double world() const { return communicator_.world_size(); }

  comm::Communicator& communicator_;
  CollectiveLog log_;
  const rank::LogicalRanks ranks_;
  const rank::TreeExchange subtrees_, leaves_;
  const bool in_rank_order_;  // an all-reduce makes the sums of the tree
  const std::size_t at_once_;
  std::unique_ptr<comm::Buffer> exchanged_;  // a stretch of the parts of all ranks; null before it is needed
};

// A sum over logical ranks of tensors of one form, on its way.
class TreeSum {
 public:
  // `exchange` outlives this object. kLeaves: no sums are made before the exchange.
  explicit TreeSum(TreeExchange& exchange, TreeExchange::Parts parts = TreeExchange::Parts::kSubtrees)
      : exchange_(exchange), parts_(parts) {}

  // To be called for each logical rank of this rank, in their order. Other values may take the place of these before
  // the next call, but not before finish().
  void add(int logical_rank, const at::Tensor& values);
  // To be called after the last add(), whose values become the sum over all logical ranks. Collective.
  void finish();
  // The same where the exchange is an all-reduce: the values are the sum when the work is complete.
  comm::Work begin(int bucket);

 private:
  struct Waiting {
    rank::Subtree subtree;
    at::Tensor sum;
  };

  TreeExchange& exchange_;
  const TreeExchange::Parts parts_;
  std::vector<Waiting> waiting_;  // the sums of the subtrees before the one whose sum `last_` is
  at::Tensor last_;
  std::vector<at::Tensor> spare_;
};

// The sums of all gradients, bucket by bucket.
class GradientTree {
 public:
  // `exchange` outlives this object. `buckets`: all gradients, in host memory.
  GradientTree(TreeExchange& exchange, std::vector<at::Tensor> buckets);

  // To be called for each logical rank of this rank, in their order, when its gradients are complete. Another one's may
  // then take their place.
  void add(int logical_rank);
  // To be called after the last add(): makes the gradients the sums over all logical ranks. Collective.
  void finish();
  // Instead of add() for the last logical rank and finish(), where the exchange is an all-reduce: to be called for each
  // bucket when it is complete. It is the sum when the work is complete.
  comm::Work add_last(int logical_rank, std::size_t bucket);

 private:
  std::vector<at::Tensor> buckets_;
  std::vector<TreeSum> sums_;
};

// Returns the sums over all logical ranks of their values. `own`: a row of the same length for each logical rank of
// this rank, one after the other. Collective.
std::vector<double> sum_in_tree(comm::Communicator& communicator, const rank::LogicalRanks& ranks,
                                std::span<const double> own, std::size_t length);

}  // namespace dtrain::train
