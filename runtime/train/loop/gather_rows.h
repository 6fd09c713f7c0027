// Collects the rows of a GatheredMetric, and the sums of a SummedMetric, from all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

// Returns the rows that the ranks have added, in rank order, on the CPU; undefined if no rank has added a row. Error if
// rows differ in type or shape. `batch`: another number in each call. Collective.
at::Tensor gather_rows(run::RankSession& session, const std::string& name, std::int64_t batch,
                       const std::vector<at::Tensor>& added);

// Returns the sum of the ranks' tensors, float64 on the CPU, the same on every rank; undefined if no rank has one.
// `own`: this rank's, float64 on any device, or undefined. Error if shapes differ. `batch`: as above. Collective.
at::Tensor sum_over_ranks(run::RankSession& session, const std::string& name, std::int64_t batch,
                          const at::Tensor& own);

}  // namespace dtrain::train
