// What of a `model:` experiment can be checked before anything starts, without libtorch.
#pragma once

namespace dtrain::config {
struct Experiment;
}

namespace dtrain::run {

// ConfigError when the experiment names a model file that is not there. Nothing for experiments with an entrypoint.
void check_model_file(const config::Experiment& experiment);

// ConfigError when a program is given an experiment of the other kind: dtrain-worker (`for_model`) one with an
// entrypoint, any other program one with `model:`, which it would ignore.
void check_kind(const config::Experiment& experiment, bool for_model);

}  // namespace dtrain::run
