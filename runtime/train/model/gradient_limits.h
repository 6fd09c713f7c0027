// The limits by which gradients are clipped, and the parameters that share a limit. Each parameter group with a limit
// of its own is a set; all other parameters are set 0, whose limits come with each update (Update::max_norm,
// max_value). A limit of the norm applies to the norm over the set.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/flat_memory.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

struct GradientLimits {
  struct Limit {
    double max_norm = 0;   // L2; 0: no limit
    double max_value = 0;  // of each element; 0: no limit
  };
  std::vector<Limit> own;           // limits of the sets from 1 on
  std::vector<std::size_t> set_of;  // set of each parameter; empty: all are in set 0

  std::size_t sets() const { return own.size() + 1; }
  // Returns the limit of a set; `common` is that of set 0.
  const Limit& of(std::size_t set, const Limit& common) const { return set == 0 ? common : own[set - 1]; }
  // True if the norm of any set is limited.
  bool limits_norms(const Limit& common) const;
};

// A part of a range whose parameters are all in one set.
struct RangeOfSet {
  FlatRange range;
  std::size_t set = 0;
};
// Returns `ranges` in pieces, in their order. Padding belongs to the parameter before it.
std::vector<RangeOfSet> split_by_set(const FlatParameters& parameters, const GradientLimits& limits,
                                     std::span<const FlatRange> ranges);

}  // namespace dtrain::train
