// A model's weights as files: what a run starts from and what it leaves behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dtrain/config/initial_weights.h"

namespace dtrain::train {

// Parameters and buffers under their names (a tied one under each of its names, so that load_state_dict() is content).
// Without the tensors that the model leaves out (tensors_left_out.h). Makes the file's folder.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& path);

// What load_weights() has done, for the log.
struct LoadedWeights {
  std::string from;                   // where the weights were found
  std::vector<std::string> warnings;  // checkpoints that were passed over; with strict: false what does not fit
  std::filesystem::path checkpoint;   // whose weights they are; empty: of none
};

// Copies the tensors that `weights` names into the model, which may be on any device. A tied tensor may be in the file
// under any of its names. ConfigError: what is there cannot be used, or does not fit the model (it lists every tensor
// that is missing, left over, or of another shape or type); DataError: a damaged file.
// `what` begins the errors about weights that do not fit.
LoadedWeights load_weights(torch::nn::Module& model, const config::InitialWeights& weights,
                           const std::string& what = "initial_weights");

}  // namespace dtrain::train
