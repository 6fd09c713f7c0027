// The files that an experiment file names.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/experiment.h"

namespace dtrain::run {

// Returns one line for each named file that is missing on this machine (program, model file, data files of a `model:`
// experiment, initial weights), and for a folder for checkpoints that cannot be written.
std::vector<std::string> find_missing_files(const config::Experiment& experiment);

}  // namespace dtrain::run
