// The module dtrain._torch_distributed: what python/dtrain/torch_backend.py needs of libdtrain_torch_distributed.
#include <string>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dtrain/torch_distributed/backend.h"
#include "dtrain/torch_distributed/observer.h"
#include "source_line.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

c10::intrusive_ptr<c10d::Backend> create(const c10d::DistributedBackendOptions& options) {
  return c10::make_intrusive<torch_distributed::Backend>(options);
}

// `observer`: of dtrain._native.UnchangedScript.
void observe(const py::capsule& observer) {
  torch_distributed::observe(*observer.get_pointer<torch_distributed::Observer>());
}

}  // namespace

PYBIND11_MODULE(_torch_distributed, module) {
  py::module_::import("torch.distributed");  // its types
  torch_distributed::set_source_line_finder(&find_source_line);
  module.def("skip_source_lines_of", &skip_source_lines_of);
  module.def("create", &create, py::call_guard<py::gil_scoped_release>());
  module.def("observe", &observe);
  module.def("announce_end", &torch_distributed::announce_end, py::call_guard<py::gil_scoped_release>());
  module.def("write_flight_record", &torch_distributed::write_flight_record, py::call_guard<py::gil_scoped_release>());
}

}  // namespace dtrain::python
