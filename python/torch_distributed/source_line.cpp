#include "source_line.h"

#include <Python.h>
#include <frameobject.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::python {
namespace {

std::vector<std::string>& skipped() {
  static auto* const paths = new std::vector<std::string>;
  return *paths;
}

bool is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

std::string_view text_of(PyObject* text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text, &size);
  if (!data) PyErr_Clear();
  return data ? std::string_view(data, static_cast<std::size_t>(size)) : std::string_view();
}

bool counts(std::string_view file) {
  return !file.starts_with("<frozen ") && std::none_of(skipped().begin(), skipped().end(),
                                                       [&](const std::string& path) { return file.starts_with(path); });
}

template <std::size_t kSize>
void put(std::array<char, kSize>& to, std::string_view text) {
  const std::string_view kept = text.substr(text.size() - std::min(text.size(), kSize - 1));
  std::memcpy(to.data(), kept.data(), kept.size());
}

}  // namespace

void skip_source_lines_of(std::vector<std::string> paths) {
  skipped() = std::move(paths);
}

torch_distributed::SourceLine find_source_line() {
  torch_distributed::SourceLine line;
  if (!PyGILState_GetThisThreadState() || is_ending()) return line;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame && line.number == 0) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    if (const std::string_view file = text_of(code->co_filename); counts(file)) {
      put(line.file, file);
      put(line.function, text_of(code->co_name));
      line.number = PyFrame_GetLineNumber(frame);
    }
    Py_DECREF(code);
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  PyGILState_Release(state);
  return line;
}

}  // namespace dtrain::python
