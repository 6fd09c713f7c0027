// The parts of the module dtrain._native. Each adds its classes and functions, which Python calls with the GIL.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// For functions that may wait.
using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;

void add_data_sets(pybind11::module_& module);
void add_optimizer_state(pybind11::module_& module);
void add_script_loop(pybind11::module_& module);

// Gives the context an optimizer of `kind` ("sgd", "adamw": the words of an experiment's optimizer.name).
// `param_groups`: Python's list of dicts; each step reads their "lr" again. `settings`: for each group a dict of the
// settings' names in C++ and their values. `model`: one of several models; empty: the only model. ConfigError for
// invalid settings.
void wrap_optimizer(TrialContext& context, const std::string& model, const std::string& kind,
                    const pybind11::list& param_groups, const pybind11::list& settings);

}  // namespace dtrain::python
