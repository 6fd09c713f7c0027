// Reads a TorchScript file. Errors tell what another file is.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

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

}  // namespace dtrain::worker
