// Finds the operators of a TorchScript that are in training mode in both modes: torch.jit.trace() writes the mode at
// the time of tracing into the graph as a constant, while torch.jit.script() reads `self.training`.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// Returns the operators of forward() whose training flag is the constant true, each once: "batch_norm", "dropout".
std::vector<std::string> always_training(const torch::jit::Module& script);

// Finds state that a script keeps on the host between forward passes, which a CUDA graph cannot repeat.

// Returns the name of an attribute that forward() changes and that is neither a parameter nor a buffer (a counter, a
// list, a plain tensor); empty: there is none.
std::optional<std::string> changed_attribute(const torch::jit::Module& script);

// Turns an exception of the TorchScript interpreter into an error message that a user can act on.

// Returns the first line of torch's message, without tracebacks.
std::string torch_cause(const std::string& message);

// Returns the submodule whose code failed, with the shapes of its parameters: "fc1 (fc1.weight [128, 784], fc1.bias
// [128])". Follows the traceback of `message` through the code in `file`; empty: not found.
std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file);

}  // namespace dtrain::worker
