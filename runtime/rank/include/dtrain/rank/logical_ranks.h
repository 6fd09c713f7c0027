// The logical ranks of a rank (reproducibility.virtual_ranks): each batch is divided among them, whatever the number of
// ranks, and a rank computes the parts of a range of them. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::rank {

struct LogicalRanks {
  int size = 1;           // of all ranks together
  int begin = 0;          // the first of this rank
  int end = 1;            // behind its last
  int current = 0;        // the one for which the rank computes now
  bool virtuals = false;  // false: each rank is one logical rank

  int count() const { return end - begin; }
  // The place of `current` among those of this rank.
  std::size_t index() const { return static_cast<std::size_t>(current - begin); }
};

// Returns the logical ranks of a rank among `ranks`. `virtual_ranks`: their number, at least `ranks`; 0: `ranks`.
inline LogicalRanks logical_ranks_of(int rank, int ranks, int virtual_ranks) {
  if (virtual_ranks == 0) return {ranks, rank, rank + 1, rank, false};
  const auto first_of = [&](std::int64_t of) { return static_cast<int>(of * virtual_ranks / ranks); };
  return {virtual_ranks, first_of(rank), first_of(rank + 1), first_of(rank), true};
}

}  // namespace dtrain::rank
