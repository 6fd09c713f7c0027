// The files that hold the weights that `initial_weights` names. Plain functions, any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/checkpoints.h"

namespace dtrain::run {

struct WeightFiles {
  std::vector<std::filesystem::path> files;  // safetensors, at least one
  std::string from;                          // for people: "step-120 of runs/0001-first, checked"
  std::vector<std::string> passed_over;      // newer checkpoints that were skipped, each with the reason
  std::filesystem::path checkpoint;          // whose weights they are; empty: of none
};

// Finds them; verifies every byte of a checkpoint. ConfigError if nothing usable exists there, or if the training state
// is wanted and no checkpoint is there; DataError if the index is damaged.
WeightFiles find_weight_files(const config::InitialWeights& weights);

// ConfigError if no file, checkpoint or run is there. Reads no weights.
void check_initial_weights(const config::InitialWeights& weights);

}  // namespace dtrain::run
