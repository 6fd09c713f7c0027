// Chooses among the tensors that a model returns, by `loss.output` and the names in `loss.auxiliary`.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace dtrain::worker {

// An output that the experiment names.
struct OutputChoice {
  std::string key;   // for errors: "loss.output"
  std::string name;  // name in a named tuple or a dict, or number of a tuple's element. Empty: the only tensor
};

// ConfigError if no value of type `returned` has the output. Some types, such as dicts, do not tell.
void check_choice(const c10::TypePtr& returned, const OutputChoice& choice, const std::string& file);

// Error if forward() has returned no such tensor.
at::Tensor chosen_output(const c10::IValue& returned, const OutputChoice& choice);

}  // namespace dtrain::worker
