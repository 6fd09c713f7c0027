// The program that carries out an experiment.
#pragma once

#include <filesystem>

#include "dtrain/config/experiment.h"
#include "environment.h"

namespace dtrain::run {

// A name without a slash: beside the running dtrain, then in PATH. Other paths: relative to the experiment file.
// ConfigError where it is not there, or cannot be executed.
std::filesystem::path find_entrypoint(const config::Experiment& experiment, const Variables& variables);

}  // namespace dtrain::run
