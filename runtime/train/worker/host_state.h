// Finds state that a script keeps on the host between forward passes, which a CUDA graph cannot repeat.
#pragma once

#include <optional>
#include <string>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// Returns the name of an attribute that forward() changes and that is neither a parameter nor a buffer (a counter, a
// list, a plain tensor); empty: there is none.
std::optional<std::string> changed_attribute(const torch::jit::Module& script);

}  // namespace dtrain::worker
