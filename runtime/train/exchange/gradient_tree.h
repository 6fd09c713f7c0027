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
#include "model/flat_parameters.h"
#include "run_services.h"

namespace dtrain::train {

class GradientTree {
 public:
  static constexpr std::size_t kExchangedAtOnce = 16 << 20;  // bytes of all ranks' subtrees

  // All references outlive this object. Parameters lie in host memory. `at_once`: the bytes that are exchanged at once,
  // which do not matter for the sums. Collective.
  GradientTree(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
               const rank::LogicalRanks& ranks, std::size_t at_once = kExchangedAtOnce);

  // To be called for each logical rank of this rank, in their order, when its gradients are complete. Another one's may
  // then take their place.
  void add(int logical_rank);
  // To be called after the last add(): makes the gradients the sums over all logical ranks. Collective.
  void finish();

 private:
  using Gradients = std::vector<at::Tensor>;  // of all groups
  struct Waiting {
    rank::Subtree subtree;
    Gradients sums;
  };
  Gradients take_memory();
  std::size_t places() const { return tree_.most * static_cast<std::size_t>(communicator_.world_size()); }
  // Exchanges the elements [first, first + count) of a group with the other ranks, and sums them.
  void exchange(std::size_t group, std::int64_t first, std::int64_t count);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  CollectiveLog log_;
  const rank::LogicalRanks ranks_;
  const rank::TreeExchange tree_;
  const bool in_rank_order_;      // an all-reduce makes the sums of the tree
  std::vector<Waiting> waiting_;  // the sums of the subtrees before the one whose sum the gradients are
  rank::Subtree last_;            // that one
  std::vector<Gradients> spare_;
  std::unique_ptr<comm::Buffer> exchanged_;  // a stretch of the subtrees of all ranks; null with one rank
};

// Returns the sums over all logical ranks of their values. `own`: a row of the same length for each logical rank of
// this rank, one after the other. Collective.
std::vector<double> sum_in_tree(comm::Communicator& communicator, const rank::LogicalRanks& ranks,
                                std::span<const double> own, std::size_t length);

}  // namespace dtrain::train
