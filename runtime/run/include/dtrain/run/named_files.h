// The files that an experiment file names.
#pragma once

#include <string>
#include <vector>

#include "dtrain/config/experiment.h"

namespace dtrain::run {

// Describes those that are not on this machine, one text each: program, TorchScript file, data files of a `model:`
// experiment, initial weights; and a folder for checkpoints that cannot be written.
std::vector<std::string> find_missing_files(const config::Experiment& experiment);

}  // namespace dtrain::run
