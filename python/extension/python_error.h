// Calls Python code from the engine: its exceptions become the engine's errors, with Python's traceback once in the
// message.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/base/error.h"

namespace dtrain::python {

// Returns the exit code of the last sys.exit() that ended a call of call_python(); empty: there was none.
std::optional<int> exit_code_asked_for();

// Throws the engine's error for Python's exception, for call_python().
[[noreturn]] void rethrow(const std::string& what, pybind11::error_already_set& error);

// Calls `function` with the GIL. An exception of Python becomes an Error with its traceback; dtrain's errors that have
// passed through Python keep their kind. sys.exit() becomes an Error, too; exit_code_asked_for() has its code.
template <typename Function>
auto call_python(const std::string& what, const Function& function) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return function();
  } catch (pybind11::error_already_set& error) {
    rethrow(what, error);
  }
}

// Releases Python's objects with the GIL; at the end of the process they are leaked.
void let_go(std::initializer_list<pybind11::object*> objects);

// Makes dtrain.Error, dtrain.ConfigError and dtrain.DataError in the module, and translates the engine's errors to
// them.
void add_errors(pybind11::module_& module);

}  // namespace dtrain::python
