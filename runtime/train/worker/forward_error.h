// Turns an exception of the TorchScript interpreter into an error message that a user can act on.
#pragma once

#include <exception>
#include <filesystem>
#include <string>

#include <torch/csrc/jit/api/module.h>

namespace dtrain::worker {

// Returns the first line of torch's message, without tracebacks.
std::string torch_cause(const std::string& message);

// Returns the submodule whose code failed, with the shapes of its parameters: "fc1 (fc1.weight [128, 784], fc1.bias
// [128])". Follows the traceback of `message` through the code in `file`; empty: not found.
std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file);

}  // namespace dtrain::worker
