// The L2 norm of all gradients, to the last bit the same however they are divided over ranks.
//
// Each line of 64 bytes has its sum of squares, in double; lines are summed pairwise, along the binary tree over their
// numbers in the group's flat buffer (whose error grows with the logarithm of their number: Higham, "The accuracy of
// floating point summation", 1993). A stretch of lines consists of a few whole branches of that tree, and what several
// ranks found out about their own stretches is put together along the same tree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/flat_memory.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

struct NormBranch {
  std::size_t group = 0;
  std::int64_t line = 0;  // the first of 2^level lines; a multiple of that
  int level = 0;
  bool operator==(const NormBranch&) const = default;
};

// The largest branches that make up a range, in order. It begins and ends at lines of 64 bytes.
std::vector<NormBranch> branches_of(const FlatRange& range, std::int64_t element_size);
// How many elements a branch has.
std::int64_t elements_of(const NormBranch& branch, std::int64_t element_size);

// Of the gradients. Those of parameters that no rank used are zeros after an exchange, so they need not be left out.
double sum_of_squares(const FlatParameters& parameters, const NormBranch& branch);

// Of values on a host, float32 or float64, along the same tree. They begin at a line and fill their last one.
double sum_of_squares(const at::Tensor& values);

// Sums of branches that make up whole groups, in the order of group and line.
double combine(std::span<const NormBranch> branches, std::span<const double> sums);

// Of gradients in several sets, whose norms these are; of one set its norm.
double norm_of(std::span<const double> norms);

// What gradients of this norm are multiplied by so that it is at most `max_norm`: 1 where it is already. As PyTorch's
// clip_grad_norm_: 0 where the norm is infinite, so that finite gradients become 0 and infinite ones NaN; NaN where it
// is NaN.
double clip_factor(double norm, double max_norm);

}  // namespace dtrain::train
