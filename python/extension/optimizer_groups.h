// torch.optim's optimizers as the engine's: the settings of each parameter group, and learning rates that follow what
// Python writes into param_groups. With the GIL.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// Gives the context an optimizer of `kind` ("sgd", "adamw": the words of an experiment's optimizer.name).
// `param_groups`: Python's list of dicts, of which each step reads "lr" anew. `settings`: for each of them a dict of
// the settings' names in C++ and their values. `model`: one of several; empty: the only one. ConfigError for settings
// that make no sense.
void wrap_optimizer(TrialContext& context, const std::string& model, const std::string& kind,
                    const pybind11::list& param_groups, const pybind11::list& settings);

}  // namespace dtrain::python
