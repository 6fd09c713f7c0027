// The L2 norm of all gradients, to the last bit the same however they are divided over ranks.
//
// Each line of 64 bytes has its sum of squares, in double. Lines are summed pairwise, along the binary tree over their
// numbers in the group's flat buffer (whose error grows with the logarithm of their number: Higham, "The accuracy of
// floating point summation", 1993). A stretch of lines consists of a few whole branches of that tree, and the sums of
// several ranks' stretches are combined along the same tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/flat_parameters.h"
#include "model/tensor_memory.h"

namespace dtrain::train {

struct NormBranch {
  std::size_t group = 0;
  std::int64_t line = 0;  // the first of 2^level lines; a multiple of 2^level
  int level = 0;
  bool operator==(const NormBranch&) const = default;
};

// Returns the largest branches that make up a range, in order. The range begins and ends at lines of 64 bytes.
std::vector<NormBranch> branches_of(const FlatRange& range, std::int64_t element_size);
// Returns the number of elements in a branch.
std::int64_t elements_of(const NormBranch& branch, std::int64_t element_size);

// The sum over gradients. Those of parameters that no rank used are zeros after an exchange, so they are included.
double sum_of_squares(const FlatParameters& parameters, const NormBranch& branch);

// The sum over values on a host, float32 or float64, along the same tree. They begin at a line and fill the last.
double sum_of_squares(const at::Tensor& values);

// Adds sums of branches that make up whole groups, in the order of group and line.
double combine(std::span<const NormBranch> branches, std::span<const double> sums);

// Returns the norm of gradients in several sets from the sets' norms; of one set its norm.
double norm_of(std::span<const double> norms);

// Returns the factor that brings gradients of this norm to at most `max_norm`: 1 if the norm is below. As PyTorch's
// clip_grad_norm_: 0 if the norm is infinite, so that finite gradients become 0 and infinite ones NaN; NaN if the norm
// is NaN.
double clip_factor(double norm, double max_norm);

// The limits by which gradients are clipped, and the parameters that share a limit. Each parameter group with a limit
// of its own is a set; all other parameters are set 0, whose limits come with each update (Update::max_norm,
// max_value). A limit of the norm applies to the norm over the set.
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
