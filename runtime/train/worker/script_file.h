// Reads a TorchScript file (script_file.cpp; errors tell what another file is) and its code (script_code.cpp): what it
// does in both modes, what a CUDA graph cannot repeat, where it has failed.
#pragma once

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>

#include "worker/loss.h"

namespace dtrain::worker {

// ConfigError if the file is missing or no TorchScript; it tells the file's kind and how to make TorchScript of it.
torch::jit::Module load_script(const std::filesystem::path& file);

// ConfigError unless `script` has trainable parameters, and all its tensors on the CPU.
void check_script(const torch::jit::Module& script, const std::filesystem::path& file);
// ConfigError unless all tensors of `script` are on the CPU.
void check_devices(const torch::jit::Module& script, const std::filesystem::path& file);

// ConfigError unless `script` has a forward() that can be called with tensors of these names.
void check_forward(const torch::jit::Module& script, const std::filesystem::path& file,
                   const std::vector<std::string>& inputs);

// Returns the message of an exception of libtorch, without its C++ stack.
std::string torch_message(const std::exception& error);

// Returns the shape and the type of a tensor: "[64, 1, 28, 28] float32".
std::string describe(const at::Tensor& tensor);

// Returns the operators of forward() that are in training mode in both modes, each once: "batch_norm", "dropout".
// torch.jit.trace() writes the mode at the time of tracing into the graph as a constant, while torch.jit.script() reads
// `self.training`.
std::vector<std::string> always_training(const torch::jit::Module& script);

// Returns the name of an attribute that forward() changes and that is neither a parameter nor a buffer (a counter, a
// list, a plain tensor), which a CUDA graph cannot repeat; empty: there is none.
std::optional<std::string> changed_attribute(const torch::jit::Module& script);

// A script without the linear layer that makes an output, and after which nothing is computed.
struct ShortScript {
  LastLayer layer;
  // forward() with the layer's input in the place of the output; null: there is no such layer.
  std::shared_ptr<torch::jit::GraphFunction> forward;
  std::string why_not;  // why not, as the continuation of "because"
};
// `element`: the output's number in the tuple that forward() returns; empty: forward() returns the tensor.
ShortScript without_last_layer(const torch::jit::Module& script, std::optional<std::size_t> element);

// Returns the first line of the message of a TorchScript exception, without tracebacks.
std::string torch_cause(const std::string& message);

// Returns the submodule whose code failed, with the shapes of its parameters: "fc1 (fc1.weight [128, 784], fc1.bias
// [128])". Follows the traceback of `message` through the code in `file`; empty: not found.
std::string failed_submodule(const std::string& message, const torch::jit::Module& script,
                             const std::filesystem::path& file);

}  // namespace dtrain::worker
