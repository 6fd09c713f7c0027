// linear_cross_entropy() for a caller that computes more of the scores: the accuracy of a `model:` experiment.
#pragma once

#include <functional>

#include "dtrain/train/linear_cross_entropy.h"

namespace dtrain::train {

// Gets the scores [rows, classes] of a chunk and its targets [rows], without gradients. The scores last until it
// returns.
using SeeScores = std::function<void(const at::Tensor& scores, const at::Tensor& target)>;

// As dtrain::linear_cross_entropy(). Calls `see` for each chunk, in the order of the rows.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options, const SeeScores& see);

}  // namespace dtrain::train
