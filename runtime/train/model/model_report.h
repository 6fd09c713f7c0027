// What plan.json says about the model and its optimizer, for people and for the analysis of the run. Rank 0 calls, from
// the training thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/train/optimizer.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

// "float32", "bfloat16", …: an element type as Python has it; of a type that Python has no short name for, libtorch's
// own. Any thread.
std::string dtype_name(at::ScalarType type);

// {"parameters", "bytes", "tensors", "dtype": of most elements, "shapes": [{"name", "sizes"}]}: the largest 1,000 of
// them, in the model's order.
Json describe_model(const FlatParameters& parameters);

// {"kind", "fused", "kernel": whose updates the parameters of most elements, "kernel_reason": why not dtrain's, where
// that could}; null where there is no optimizer.
Json describe_optimizer(const std::optional<Optimizer>& optimizer, const FlatParameters& parameters);

// [{"name", "tensors", "parameters", "lr"}]: first the parameters that no group includes, then the groups.
Json describe_groups(std::span<const ParameterGroup> groups, const FlatOptimizer& optimizer);

// The name of the first parameter that holds NaN.
std::optional<std::string> first_nan_parameter(const FlatParameters& parameters);

}  // namespace dtrain::train
