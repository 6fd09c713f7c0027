#include "dtrain/rank/rank_tree.h"

#include <algorithm>
#include <bit>

namespace dtrain::rank {
namespace {

// Returns the leaf with which the right branch of a node with several leaves begins.
int middle_of(const Subtree& node) {
  const auto leaves = static_cast<unsigned>(node.end - node.begin);
  return node.begin + static_cast<int>(std::bit_floor(leaves - 1));
}

void add_subtrees(const Subtree& node, int begin, int end, std::vector<Subtree>& to) {
  if (node.end <= begin || end <= node.begin) return;
  if (begin <= node.begin && node.end <= end) return to.push_back(node);
  const int middle = middle_of(node);
  add_subtrees({node.begin, middle}, begin, end, to);
  add_subtrees({middle, node.end}, begin, end, to);
}

// Returns the most values that wait at once while a rank adds its leaves one by one, without the newest.
int most_kept(int leaves, int begin, int end) {
  int most = 0;
  for (int behind = begin; behind < end; ++behind) {
    most = std::max(most, static_cast<int>(largest_subtrees(leaves, begin, behind).size()));
  }
  return most;
}

}  // namespace

bool are_siblings(int leaves, const Subtree& left, const Subtree& right) {
  if (left.end != right.begin) return false;
  for (Subtree node{0, leaves}; node.end - node.begin > 1;) {
    const int middle = middle_of(node);
    if (node == Subtree{left.begin, right.end}) return middle == left.end;
    node = left.begin < middle ? Subtree{node.begin, middle} : Subtree{middle, node.end};
  }
  return false;
}

std::vector<Subtree> largest_subtrees(int leaves, int begin, int end) {
  std::vector<Subtree> subtrees;
  add_subtrees({0, leaves}, begin, end, subtrees);
  return subtrees;
}

std::vector<Join> joins_of(int leaves, std::span<const Subtree> subtrees) {
  struct Open {
    Subtree subtree;
    std::size_t place;
  };
  std::vector<Open> open;
  std::vector<Join> joins;
  for (std::size_t place = 0; place < subtrees.size(); ++place) {
    Subtree sum = subtrees[place];
    for (; !open.empty() && are_siblings(leaves, open.back().subtree, sum); open.pop_back()) {
      joins.push_back({open.back().place, place});
      sum.begin = open.back().subtree.begin;
    }
    open.push_back({sum, place});
  }
  return joins;
}

TreeExchange tree_exchange(int leaves, int ranks) {
  std::vector<std::vector<Subtree>> of_ranks;
  TreeExchange exchange;
  for (int rank = 0; rank < ranks; ++rank) {
    const LogicalRanks own = logical_ranks_of(rank, ranks, leaves);
    of_ranks.push_back(largest_subtrees(leaves, own.begin, own.end));
    exchange.most = std::max(exchange.most, of_ranks.back().size());
  }
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (std::size_t i = 0; i < of_ranks[rank].size(); ++i) exchange.places.push_back(rank * exchange.most + i);
    all.insert(all.end(), of_ranks[rank].begin(), of_ranks[rank].end());
  }
  exchange.joins = joins_of(leaves, all);
  for (Join& join : exchange.joins) join = {exchange.places[join.left], exchange.places[join.right]};
  return exchange;
}

TreeCost tree_cost(int leaves, int ranks) {
  TreeCost cost;
  for (int rank = 0; rank < ranks; ++rank) {
    const LogicalRanks own = logical_ranks_of(rank, ranks, leaves);
    cost.most_ranks = std::max(cost.most_ranks, own.count());
    cost.most_kept = std::max(cost.most_kept, most_kept(leaves, own.begin, own.end));
  }
  cost.received = ranks == 1 ? 0 : (ranks - 1) * static_cast<int>(tree_exchange(leaves, ranks).most);
  return cost;
}

}  // namespace dtrain::rank
