#include "exchange/gradient_tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "dtrain/comm/backend_list.h"
#include "model/precision.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kTreeLine = 64;  // bytes

// Makes `right` the sum of both. The order of the operands is the same wherever two subtrees meet: of two nans the sum
// has the bits of the first.
void add_left(const at::Tensor& left, at::Tensor right) {
  at::add_out(right, left, right);
}

// True if an all-reduce, which sums in rank order, makes the sums of the tree: each rank has one subtree, and each
// joins the sum of all subtrees before it.
bool is_rank_order(const rank::TreeExchange& tree, const comm::Communicator& communicator) {
  if (tree.most > 1) return false;
  if (communicator.world_size() > 2 && communicator.backend() == comm::HierarchicalBackend::kWord) return false;
  for (std::size_t i = 0; i < tree.joins.size(); ++i) {
    if (tree.joins[i] != rank::Join{i, i + 1}) return false;
  }
  return true;
}

}  // namespace

GradientTree::GradientTree(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
                           const rank::LogicalRanks& ranks, std::size_t at_once)
    : parameters_(parameters),
      communicator_(communicator),
      log_(communicator, recorder),
      ranks_(ranks),
      tree_(rank::tree_exchange(ranks.size, communicator.world_size())),
      in_rank_order_(is_rank_order(tree_, communicator)) {
  if (communicator.world_size() == 1 || in_rank_order_) return;
  // Every rank's place has room for a line of each of its subtrees.
  exchanged_ = communicator.allocate(std::max(at_once, places() * kTreeLine));
}

GradientTree::Gradients GradientTree::take_memory() {
  if (!spare_.empty()) {
    Gradients memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }
  Gradients memory;
  for (const auto& group : parameters_.groups()) memory.push_back(at::empty_like(group.gradients));
  return memory;
}

void GradientTree::add(int logical_rank) {
  const at::NoGradGuard no_grad;
  last_ = {logical_rank, logical_rank + 1};
  const auto groups = parameters_.groups();
  while (!waiting_.empty() && rank::are_siblings(ranks_.size, waiting_.back().subtree, last_)) {
    Waiting left = std::move(waiting_.back());
    waiting_.pop_back();
    for (std::size_t g = 0; g < groups.size(); ++g) add_left(left.sums[g], groups[g].gradients);
    last_.begin = left.subtree.begin;
    spare_.push_back(std::move(left.sums));
  }
  if (last_.end == ranks_.end) return;
  Gradients sums = take_memory();
  for (std::size_t g = 0; g < groups.size(); ++g) sums[g].copy_(groups[g].gradients);
  waiting_.push_back({last_, std::move(sums)});
}

void GradientTree::finish() {
  const at::NoGradGuard no_grad;
  if (communicator_.world_size() > 1 && in_rank_order_) {
    for (const auto& group : parameters_.groups()) {
      comm::Work work =
          communicator_.all_reduce(FlatMemory::address(group.gradients),
                                   static_cast<std::size_t>(group.gradients.numel()), comm_type(group.gradient_dtype));
      work.wait();
      log_.record("all_reduce", -1, work);
    }
  } else if (communicator_.world_size() > 1) {
    for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
      const auto& group = parameters_.groups()[g];
      const std::size_t bytes = exchanged_->bytes().size() / places() / kTreeLine * kTreeLine;
      const std::int64_t at_once = static_cast<std::int64_t>(bytes) / group.gradient_size;
      for (std::int64_t first = 0; first < group.gradients.numel(); first += at_once) {
        exchange(g, first, std::min(at_once, group.gradients.numel() - first));
      }
    }
  }
  for (Waiting& waiting : waiting_) spare_.push_back(std::move(waiting.sums));
  waiting_.clear();
}

void GradientTree::exchange(std::size_t g, std::int64_t first, std::int64_t count) {
  const auto& group = parameters_.groups()[g];
  const auto bytes = static_cast<std::size_t>(count * group.gradient_size);
  std::byte* const all = exchanged_->bytes().data();
  std::byte* const own = all + static_cast<std::size_t>(communicator_.rank()) * tree_.most * bytes;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    std::memcpy(own + i * bytes, FlatMemory::address(waiting_[i].sums[g], first), bytes);
  }
  std::byte* const gradients = FlatMemory::address(group.gradients, first);
  std::memcpy(own + waiting_.size() * bytes, gradients, bytes);
  comm::Work work =
      communicator_.all_gather(own, all, tree_.most * static_cast<std::size_t>(count), comm_type(group.gradient_dtype));
  work.wait();
  log_.record("all_gather", -1, work);
  const auto sum_at = [&](std::size_t place) {
    return at::from_blob(all + place * bytes, {count}, at::TensorOptions().dtype(group.gradient_dtype));
  };
  for (const rank::Join& sums : tree_.joins) add_left(sum_at(sums.left), sum_at(sums.right));
  std::memcpy(gradients, all + tree_.places.back() * bytes, bytes);
}

std::vector<double> sum_in_tree(comm::Communicator& communicator, const rank::LogicalRanks& ranks,
                                std::span<const double> own, std::size_t length) {
  const int world = communicator.world_size();
  std::size_t most = 0;
  std::vector<rank::Subtree> leaves;
  std::vector<std::size_t> places;
  for (int r = 0; r < world; ++r) {
    most = std::max(most, static_cast<std::size_t>(rank::logical_ranks_of(r, world, ranks.size).count()));
  }
  for (int r = 0; r < world; ++r) {
    const rank::LogicalRanks of = rank::logical_ranks_of(r, world, ranks.size);
    for (int leaf = of.begin; leaf < of.end; ++leaf) {
      leaves.push_back({leaf, leaf + 1});
      places.push_back(static_cast<std::size_t>(r) * most + static_cast<std::size_t>(leaf - of.begin));
    }
  }
  std::vector<double> mine(most * length), all(most * length * static_cast<std::size_t>(world));
  std::copy(own.begin(), own.end(), mine.begin());
  communicator.all_gather(mine.data(), all.data(), mine.size(), comm::DataType::kFloat64).wait();
  for (const rank::Join& sums : rank::joins_of(ranks.size, leaves)) {
    const double* const left = all.data() + places[sums.left] * length;
    double* const right = all.data() + places[sums.right] * length;
    for (std::size_t i = 0; i < length; ++i) right[i] += left[i];
  }
  const auto sum = all.begin() + static_cast<std::ptrdiff_t>(places.back() * length);
  return {sum, sum + static_cast<std::ptrdiff_t>(length)};
}

}  // namespace dtrain::train
