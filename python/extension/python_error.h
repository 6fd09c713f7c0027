// Exceptions of Python's code as the engine's errors: the message has Python's traceback once.
#pragma once

#include <optional>
#include <string>

#include <pybind11/pybind11.h>

#include "dtrain/base/error.h"

namespace dtrain::python {

// The exit code of the last sys.exit() that has ended a call of call_python(); empty: there was none.
std::optional<int> exit_code_asked_for();

// Of call_python(): throws what Python's exception is for the engine.
[[noreturn]] void rethrow(const std::string& what, pybind11::error_already_set& error);

// Calls `function` with the GIL. An exception of Python becomes an Error that holds its traceback; dtrain's own errors
// that have passed through Python keep their kind. So does sys.exit(), whose code the process is to end with.
template <typename Function>
auto call_python(const std::string& what, const Function& function) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return function();
  } catch (pybind11::error_already_set& error) {
    rethrow(what, error);
  }
}

// Makes dtrain.Error, dtrain.ConfigError and dtrain.DataError in the module, and translates the engine's errors to
// them.
void add_errors(pybind11::module_& module);

}  // namespace dtrain::python
