// Reads the code of a TorchScript: what it does in both modes, what a CUDA graph cannot repeat, where it has failed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// Returns the operators of forward() that are in training mode in both modes, each once: "batch_norm", "dropout".
// torch.jit.trace() writes the mode at the time of tracing into the graph as a constant, while torch.jit.script() reads
// `self.training`.
std::vector<std::string> always_training(const torch::jit::Module& script);

// Returns the name of an attribute that forward() changes and that is neither a parameter nor a buffer (a counter, a
// list, a plain tensor), which a CUDA graph cannot repeat; empty: there is none.
std::optional<std::string> changed_attribute(const torch::jit::Module& script);

// Returns the first line of the message of a TorchScript exception, without tracebacks.
std::string torch_cause(const std::string& message);

// Returns the submodule whose code failed, with the shapes of its parameters: "fc1 (fc1.weight [128, 784], fc1.bias
// [128])". Follows the traceback of `message` through the code in `file`; empty: not found.
std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file);

}  // namespace dtrain::worker
