// What a script keeps on the host from one forward pass to the next, which a CUDA graph cannot repeat.
#pragma once

#include <optional>
#include <string>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// The name of an attribute that forward() changes and that is neither a parameter nor a buffer (a counter, a list, a
// plain tensor), if there is one.
std::optional<std::string> changed_attribute(const torch::jit::Module& script);

}  // namespace dtrain::worker
