// The files of a model that an experiment names: those of `model:`, and those of `initial_weights`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/config/checkpoints.h"

namespace dtrain::config {
struct Experiment;
struct ModelFile;
}  // namespace dtrain::config

namespace dtrain::rank {

// Checks of a `model:` experiment before anything starts, without libtorch.

// ConfigError if a model file of the experiment does not exist. Does nothing for experiments with an entrypoint.
void check_model_files(const config::Experiment& experiment);
// Checks one of its files in the same way.
void check_model_file(const config::Experiment& experiment, const config::ModelFile& file);

// ConfigError if a program gets an experiment of the other kind: dtrain-worker (`for_model`) one with an entrypoint,
// any other program one with `model:`, which it would ignore.
void check_kind(const config::Experiment& experiment, bool for_model);

}  // namespace dtrain::rank

namespace dtrain::rank {

// The files that hold the weights that `initial_weights` names. Plain functions, any thread.

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

}  // namespace dtrain::rank
