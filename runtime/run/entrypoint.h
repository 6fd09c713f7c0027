// Finds the program that carries out an experiment.
#pragma once

#include <filesystem>

#include "dtrain/config/experiment.h"
#include "environment.h"

namespace dtrain::run {

// A name without a slash: looked for beside the running dtrain, then in PATH. Other paths: relative to the experiment
// file. ConfigError if there is no such program or it cannot be executed.
std::filesystem::path find_entrypoint(const config::Experiment& experiment, const Variables& variables);

}  // namespace dtrain::run
