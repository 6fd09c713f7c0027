// The state that a trial or a callback puts into checkpoints.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "dtrain/base/json.h"

namespace dtrain {

// The state that a trial keeps from batch to batch, besides that of its model and loaders. A checkpoint has it for each
// rank.
struct TrialState {
  std::map<std::string, at::Tensor> tensors;  // on any device, of any type that safetensors have
  Json values = Json::object();
};

}  // namespace dtrain
