// The fixed binary tree in whose order values of logical ranks are summed, whatever the number of ranks. A rank sums
// what its own logical ranks give as far as they are whole subtrees; the other sums follow once the ranks have
// exchanged their subtrees. Pure functions, any thread.
//
// The left branch of a node has the largest power of two of its leaves that leaves some for the right one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/rank/logical_ranks.h"

namespace dtrain::rank {

// The leaves [begin, end) below a node.
struct Subtree {
  int begin = 0;
  int end = 0;
  bool operator==(const Subtree&) const = default;
};

// True if the two are the branches of one node of the tree with so many leaves.
bool are_siblings(int leaves, const Subtree& left, const Subtree& right);

// Returns the largest subtrees that together have the leaves [begin, end), in their order.
std::vector<Subtree> largest_subtrees(int leaves, int begin, int end);

// A sum: the value at place `right` becomes the sum of both.
struct Join {
  std::size_t left = 0;
  std::size_t right = 0;
  bool operator==(const Join&) const = default;
};
// Returns the sums, in their order, that make the value of the whole tree from those of subtrees that follow each other
// and together have all leaves. It is then at the last place.
std::vector<Join> joins_of(int leaves, std::span<const Subtree> subtrees);

// The subtrees that the ranks exchange, and the sums that follow.
struct TreeExchange {
  std::vector<std::size_t> places;  // of all ranks' subtrees in their order: rank x `most` + number within the rank
  std::size_t most = 0;             // the most subtrees of a rank
  std::vector<Join> joins;          // between places
};
TreeExchange tree_exchange(int leaves, int ranks);

// What the tree costs a rank, in sizes of what is summed.
struct TreeCost {
  int most_ranks = 0;  // logical ranks of one rank
  int most_kept = 0;   // partial sums that a rank keeps beside the value that it computes
  int received = 0;    // what a rank receives, places that stay empty included
};
TreeCost tree_cost(int leaves, int ranks);

}  // namespace dtrain::rank
