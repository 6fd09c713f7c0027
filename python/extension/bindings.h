// The parts of the module dtrain._native. Each adds its classes and functions, which Python calls with the GIL.
#pragma once

#include <memory>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/train/trial.h"

namespace dtrain::python {

// For functions that may wait.
using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;

void add_data_sets(pybind11::module_& module);
void add_optimizer_state(pybind11::module_& module);
void add_script_loop(pybind11::module_& module);
void add_trial(pybind11::module_& module);
void add_unchanged_script(pybind11::module_& module);

// A launcher that finds this rank hanging can make it write the Python calls of its threads (dtrain/base/pulse.h).
void show_python_stacks();

// Returns an object with the methods of dtrain.Callback as a callback of the engine.
std::shared_ptr<Callback> callback_of(pybind11::object callback);

// Gives the context a torch.nn.Module. `name`: that of one of several models. `compiled`: torch.compile() has returned
// it. `beside`: modules by name that are trained with it but are no part of its weights.
void wrap_model(TrialContext& context, pybind11::object module, const std::string& name, bool compiled,
                const pybind11::dict& beside);

// Gives the context an optimizer of `kind` ("sgd", "adamw": the words of an experiment's optimizer.name).
// `param_groups`: Python's list of dicts; each step reads their "lr" again. `settings`: for each group a dict of the
// settings' names in C++ and their values. `model`: one of several models; empty: the only model. ConfigError for
// invalid settings.
void wrap_optimizer(TrialContext& context, const std::string& model, const std::string& kind,
                    const pybind11::list& param_groups, const pybind11::list& settings);

}  // namespace dtrain::python
