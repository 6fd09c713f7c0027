// Checks of a `model:` experiment before anything starts, without libtorch.
#pragma once

namespace dtrain::config {
struct Experiment;
struct ModelFile;
}  // namespace dtrain::config

namespace dtrain::run {

// ConfigError if a model file of the experiment does not exist. Does nothing for experiments with an entrypoint.
void check_model_files(const config::Experiment& experiment);
// Checks one of its files in the same way.
void check_model_file(const config::Experiment& experiment, const config::ModelFile& file);

// ConfigError if a program gets an experiment of the other kind: dtrain-worker (`for_model`) one with an entrypoint,
// any other program one with `model:`, which it would ignore.
void check_kind(const config::Experiment& experiment, bool for_model);

}  // namespace dtrain::run
