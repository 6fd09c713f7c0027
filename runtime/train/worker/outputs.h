// Which of the tensors that a model returns is meant: `loss.output` and the names in `loss.auxiliary`.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace dtrain::worker {

// An output as the experiment names it.
struct OutputChoice {
  std::string key;   // for errors: "loss.output"
  std::string name;  // of a named tuple or a dict, or the number of an element of a tuple. Empty: the only tensor
};

// ConfigError if no value of type `returned` has the output. Some types, such as dicts, do not tell.
void check_choice(const c10::TypePtr& returned, const OutputChoice& choice, const std::string& file);

// Error if forward() has returned no such tensor.
at::Tensor chosen_output(const c10::IValue& returned, const OutputChoice& choice);

}  // namespace dtrain::worker
