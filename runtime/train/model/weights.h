// A model's weights as a file: what a run starts from and what it leaves behind.
#pragma once

#include <filesystem>

#include <torch/nn/module.h>

namespace dtrain::train {

// Parameters and buffers under their names (a tied one under each of its names, so that load_state_dict() is content).
// Makes the file's folder.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& path);

// Copies a file's tensors into the model. ConfigError names each tensor that is missing, left over, or of another
// shape or type.
void load_weights(torch::nn::Module& model, const std::filesystem::path& path);

}  // namespace dtrain::train
