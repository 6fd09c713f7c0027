// Reads a model's weights from files at the start of a run, and writes them at its end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dtrain/config/initial_weights.h"

namespace dtrain::train {

// Writes parameters and buffers under their names (a tied one under each of its names, so that load_state_dict()
// accepts the file). Leaves out the tensors of tensors_left_out.h. Makes the file's folder.
void save_weights(const torch::nn::Module& model, const std::filesystem::path& path);

// The result of load_weights(), for the log.
struct LoadedWeights {
  std::string from;                   // where the weights were found
  std::vector<std::string> warnings;  // checkpoints that were passed over; with strict: false all misfits
  std::filesystem::path checkpoint;   // the checkpoint whose weights they are; empty: none
};

// Copies the tensors that `weights` names into the model, which may be on any device. A tied tensor may be in the file
// under any of its names. ConfigError: the files cannot be used, or do not fit the model (it lists every tensor that is
// missing, left over, or of another shape or type); DataError: a damaged file. `what` begins the errors about weights
// that do not fit.
LoadedWeights load_weights(torch::nn::Module& model, const config::InitialWeights& weights,
                           const std::string& what = "initial_weights");

}  // namespace dtrain::train
