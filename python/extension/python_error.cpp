#include "python_error.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

struct ErrorClasses {
  py::handle base, config, data;
};
ErrorClasses& classes() {
  static ErrorClasses result;  // the classes live as long as the interpreter
  return result;
}

// The exit code of the process, which ends once.
std::optional<int>& asked_exit_code() {
  static std::optional<int> result;
  return result;
}

// Returns Python's exit code: 0 for None, 1 for a text, which Python prints.
int exit_code_of(const py::handle code) {
  if (code.is_none()) return 0;
  return py::isinstance<py::int_>(code) ? py::cast<int>(code) : 1;
}

// Returns the traceback in the form that Python prints.
std::string traceback_of(const py::error_already_set& error) {
  const py::object lines =
      py::module_::import("traceback").attr("format_exception")(error.type(), error.value(), error.trace());
  std::string text = py::cast<std::string>(py::str("").attr("join")(lines));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void set_python_error(py::handle type, const Error& error) {
  std::string text = describe(error);
  if (!error.remedy().empty()) text += "\n  " + error.remedy();
  PyErr_SetString(type.ptr(), text.c_str());
}

}  // namespace

void rethrow(const std::string& what, py::error_already_set& error) {
  const std::string message = py::cast<std::string>(py::str(error.value()));
  if (classes().config && error.matches(classes().config)) throw ConfigError(message);
  if (classes().data && error.matches(classes().data)) throw DataError(message);
  if (error.matches(PyExc_SystemExit)) {
    const py::object code = error.value().attr("code");
    asked_exit_code() = exit_code_of(code);
    throw Error(what + " ended with sys.exit(" + py::cast<std::string>(py::repr(code)) + ")",
                "raise an exception to say more; searcher.max_length and stop_early() end a training that is complete");
  }
  throw Error(what + " failed in Python:\n" + traceback_of(error));
}

void let_go(std::initializer_list<py::object*> objects) {
  if (!Py_IsInitialized()) {
    for (py::object* object : objects) object->release();
    return;
  }
  const py::gil_scoped_acquire gil;
  for (py::object* object : objects) *object = py::object();
}

std::optional<int> exit_code_asked_for() {
  return asked_exit_code();
}

void add_errors(py::module_& module) {
  const auto add = [&](const char* name, py::handle base, const char* doc) {
    const std::string full = std::string("dtrain.") + name;
    const py::handle type = PyErr_NewExceptionWithDoc(full.c_str(), doc, base.ptr(), nullptr);
    module.attr(name) = type;
    return type;
  };
  classes().base = add("Error", PyExc_RuntimeError, "An error of dtrain: what failed, and what to do.");
  classes().config = add("ConfigError", classes().base, "The experiment or a call of dtrain is wrong.");
  classes().data = add("DataError", classes().base, "The data is not what training needs.");
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ConfigError& error) {
      set_python_error(classes().config, error);
    } catch (const DataError& error) {
      set_python_error(classes().data, error);
    } catch (const Error& error) {
      set_python_error(classes().base, error);
    }
  });
}

}  // namespace dtrain::python
