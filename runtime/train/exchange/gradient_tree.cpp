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

// True if an all-reduce, which sums in rank order, makes the sums of the tree: each subtree joins the sum of all before
// it. Then each rank has one, because subtrees of one rank never join first.
bool is_rank_order(const rank::TreeExchange& tree, const comm::Communicator& communicator) {
  if (communicator.world_size() > 2 && communicator.backend() == comm::HierarchicalBackend::kWord) return false;
  for (std::size_t i = 0; i < tree.joins.size(); ++i) {
    if (tree.joins[i] != rank::Join{i, i + 1}) return false;
  }
  return true;
}

// As rank::tree_exchange(), where each rank exchanges the values of its logical ranks.
rank::TreeExchange leaf_exchange(int size, int world) {
  std::vector<rank::LogicalRanks> of_ranks;
  rank::TreeExchange exchange;
  for (int r = 0; r < world; ++r) {
    of_ranks.push_back(rank::logical_ranks_of(r, world, size));
    exchange.most = std::max(exchange.most, static_cast<std::size_t>(of_ranks.back().count()));
  }
  std::vector<rank::Subtree> leaves;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    for (int leaf = of_ranks[r].begin; leaf < of_ranks[r].end; ++leaf) {
      leaves.push_back({leaf, leaf + 1});
      exchange.places.push_back(r * exchange.most + static_cast<std::size_t>(leaf - of_ranks[r].begin));
    }
  }
  for (const rank::Join& sums : rank::joins_of(size, leaves)) {
    exchange.joins.push_back({exchange.places[sums.left], exchange.places[sums.right]});
  }
  return exchange;
}

}  // namespace

TreeExchange::TreeExchange(comm::Communicator& communicator, profile::Recorder& recorder,
                           const rank::LogicalRanks& ranks, std::size_t at_once)
    : communicator_(communicator),
      log_(communicator, recorder),
      ranks_(ranks),
      subtrees_(rank::tree_exchange(ranks.size, communicator.world_size())),
      leaves_(leaf_exchange(ranks.size, communicator.world_size())),
      in_rank_order_(is_rank_order(subtrees_, communicator)),
      at_once_(at_once) {}

void TreeExchange::sum(Parts parts, std::span<const at::Tensor> own) {
  if (communicator_.world_size() == 1) return;
  const at::Tensor& last = own.back();
  if (parts == Parts::kSubtrees && in_rank_order_) {
    comm::Work work = begin_all_reduce(last, /*bucket=*/-1);
    work.wait();
    log_.record("all_reduce", -1, work);
    return;
  }
  if (!exchanged_) {
    // Every rank's place has room for a line of each of its parts.
    const std::size_t most_places = leaves_.most * static_cast<std::size_t>(communicator_.world_size());
    exchanged_ = communicator_.allocate(std::max(at_once_, most_places * kTreeLine));
  }
  const rank::TreeExchange& tree = layout(parts);
  const std::size_t places = tree.most * static_cast<std::size_t>(communicator_.world_size());
  const std::size_t bytes = exchanged_->bytes().size() / places / kTreeLine * kTreeLine;
  const auto at_once = static_cast<std::int64_t>(bytes / last.element_size());
  for (std::int64_t first = 0; first < last.numel(); first += at_once) {
    exchange(tree, own, first, std::min(at_once, last.numel() - first));
  }
}

comm::Work TreeExchange::begin_all_reduce(const at::Tensor& own, int bucket) {
  return communicator_.all_reduce(FlatMemory::address(own), static_cast<std::size_t>(own.numel()),
                                  comm_type(own.scalar_type()), {.bucket = bucket});
}

void TreeExchange::exchange(const rank::TreeExchange& tree, std::span<const at::Tensor> own, std::int64_t first,
                            std::int64_t count) {
  const at::Tensor& last = own.back();
  const std::size_t bytes = static_cast<std::size_t>(count) * last.element_size();
  std::byte* const all = exchanged_->bytes().data();
  std::byte* const mine = all + static_cast<std::size_t>(communicator_.rank()) * tree.most * bytes;
  for (std::size_t i = 0; i < own.size(); ++i) std::memcpy(mine + i * bytes, FlatMemory::address(own[i], first), bytes);
  comm::Work work = communicator_.all_gather(mine, all, tree.most * bytes, comm::DataType::kUint8);
  work.wait();
  log_.record("all_gather", -1, work);
  std::vector<at::Tensor> sums(tree.most * static_cast<std::size_t>(communicator_.world_size()));
  for (const std::size_t place : tree.places) {
    sums[place] = at::from_blob(all + place * bytes, {count}, last.options());
    if (last.itemsize() < sizeof(float)) sums[place] = sums[place].to(at::kFloat);
  }
  for (const rank::Join& join : tree.joins) add_left(sums[join.left], sums[join.right]);
  last.narrow(0, first, count).copy_(sums[tree.places.back()]);
}

void TreeExchange::gather(std::byte* all, std::size_t bytes) {
  const int world = communicator_.world_size();
  if (world == 1) return;
  if (ranks_.size % world == 0) {
    const std::size_t of_rank = bytes * static_cast<std::size_t>(ranks_.count());
    comm::Work work = communicator_.all_gather(all + bytes * static_cast<std::size_t>(ranks_.begin), all, of_rank,
                                               comm::DataType::kUint8);
    work.wait();
    log_.record("all_gather", -1, work);
    return;
  }
  for (int r = 0; r < world; ++r) {
    const rank::LogicalRanks of = rank::logical_ranks_of(r, world, ranks_.size);
    comm::Work work = communicator_.broadcast(all + bytes * static_cast<std::size_t>(of.begin),
                                              bytes * static_cast<std::size_t>(of.count()), comm::DataType::kUint8, r);
    work.wait();
    log_.record("broadcast", -1, work);
  }
}

double TreeExchange::cost(Parts parts, std::size_t bytes) const {
  const auto size = static_cast<double>(bytes);
  if (parts == Parts::kSubtrees && in_rank_order_) return 2 * (world() - 1) / world() * size;
  return (world() - 1) * static_cast<double>(layout(parts).most) * size;
}

double TreeExchange::cost_of_gather(std::size_t bytes) const {
  return (world() - 1) / world() * static_cast<double>(ranks_.size) * static_cast<double>(bytes);
}

void TreeSum::add(int logical_rank, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const rank::LogicalRanks& ranks = exchange_.ranks();
  rank::Subtree subtree{logical_rank, logical_rank + 1};
  const bool joins = parts_ == TreeExchange::Parts::kSubtrees;
  while (joins && !waiting_.empty() && rank::are_siblings(ranks.size, waiting_.back().subtree, subtree)) {
    Waiting left = std::move(waiting_.back());
    waiting_.pop_back();
    add_left(left.sum, values);
    subtree.begin = left.subtree.begin;
    spare_.push_back(std::move(left.sum));
  }
  last_ = values;
  if (subtree.end == ranks.end) return;
  if (spare_.empty()) spare_.push_back(at::empty_like(values));
  waiting_.push_back({subtree, std::move(spare_.back())});
  spare_.pop_back();
  waiting_.back().sum.copy_(values);
}

void TreeSum::finish() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (Waiting& waiting : waiting_) own.push_back(std::move(waiting.sum));
  waiting_.clear();
  own.push_back(std::exchange(last_, at::Tensor()));
  exchange_.sum(parts_, own);
  own.pop_back();
  spare_.insert(spare_.end(), std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
}

comm::Work TreeSum::begin(int bucket) {
  return exchange_.begin_all_reduce(std::exchange(last_, at::Tensor()), bucket);
}

GradientTree::GradientTree(TreeExchange& exchange, std::vector<at::Tensor> buckets)
    : buckets_(std::move(buckets)), sums_(buckets_.size(), TreeSum(exchange)) {}

void GradientTree::add(int logical_rank) {
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i].add(logical_rank, buckets_[i]);
}

void GradientTree::finish() {
  for (TreeSum& sum : sums_) sum.finish();
}

comm::Work GradientTree::add_last(int logical_rank, std::size_t bucket) {
  sums_[bucket].add(logical_rank, buckets_[bucket]);
  return sums_[bucket].begin(static_cast<int>(bucket));
}

std::vector<double> sum_in_tree(comm::Communicator& communicator, const rank::LogicalRanks& ranks,
                                std::span<const double> own, std::size_t length) {
  const rank::TreeExchange tree = leaf_exchange(ranks.size, communicator.world_size());
  std::vector<double> mine(tree.most * length), all(mine.size() * static_cast<std::size_t>(communicator.world_size()));
  std::copy(own.begin(), own.end(), mine.begin());
  communicator.all_gather(mine.data(), all.data(), mine.size(), comm::DataType::kFloat64).wait();
  for (const rank::Join& sums : tree.joins) {
    const double* const left = all.data() + sums.left * length;
    double* const right = all.data() + sums.right * length;
    for (std::size_t i = 0; i < length; ++i) right[i] += left[i];
  }
  const auto sum = all.begin() + static_cast<std::ptrdiff_t>(tree.places.back() * length);
  return {sum, sum + static_cast<std::ptrdiff_t>(length)};
}

}  // namespace dtrain::train
