// Converts torch.optim's optimizers to the engine's: the settings of each parameter group, and learning rates that
// follow the values that Python writes into param_groups. Called with the GIL.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// Gives the context an optimizer of `kind` ("sgd", "adamw": the words of an experiment's optimizer.name).
// `param_groups`: Python's list of dicts; each step reads their "lr" again. `settings`: for each group a dict of the
// settings' names in C++ and their values. `model`: one of several models; empty: the only model. ConfigError for
// invalid settings.
void wrap_optimizer(TrialContext& context, const std::string& model, const std::string& kind,
                    const pybind11::list& param_groups, const pybind11::list& settings);

}  // namespace dtrain::python
