// Describes the model and its optimizer in plan.json, for people and for the analysis of the run. Rank 0 calls it, from
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

// Returns an element type by Python's name: "float32", "bfloat16", …; a type without a short name in Python has
// libtorch's own name. Any thread.
std::string dtype_name(at::ScalarType type);

// Returns {"parameters", "bytes", "tensors", "dtype": of most elements, "shapes": [{"name", "sizes"}]}: the largest
// 1,000 of them, in the model's order.
Json describe_model(const FlatParameters& parameters);

// Returns {"kind", "fused", "kernel": the owner of the kernel that updates the parameters of most elements,
// "kernel_reason": why it is not dtrain's, where it could be}; null if there is no optimizer.
Json describe_optimizer(const std::optional<Optimizer>& optimizer, const FlatParameters& parameters);

// Returns [{"name", "tensors", "parameters", "lr"}]: first the parameters that no group includes, then the groups.
Json describe_groups(std::span<const ParameterGroup> groups, const FlatOptimizer& optimizer);

// Returns the name of the first parameter that holds NaN.
std::optional<std::string> first_nan_parameter(const FlatParameters& parameters);

}  // namespace dtrain::train
