#include "bindings.h"
#include "dtrain/base/pulse.h"
#include "python_error.h"

namespace dtrain::python {

namespace py = pybind11;

void show_python_stacks() {
  if (Pulse::own().text_fd() < 0) return;
  call_python("faulthandler.register()", [] {
    using namespace py::literals;
    py::module_::import("faulthandler")
        .attr("register")(python_stack_signal(), "file"_a = Pulse::own().text_fd(), "all_threads"_a = true);
  });
  Pulse::own().has_python_stacks();
}

}  // namespace dtrain::python
