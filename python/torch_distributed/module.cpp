// The module dtrain._torch_distributed: what python/dtrain/torch_backend.py needs of libdtrain_torch_distributed.
#include <string>

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dtrain/torch_distributed/backend.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

c10::intrusive_ptr<c10d::Backend> create(const c10d::DistributedBackendOptions& options) {
  return c10::make_intrusive<torch_distributed::Backend>(options);
}

}  // namespace

PYBIND11_MODULE(_torch_distributed, module) {
  py::module_::import("torch.distributed");  // its types
  module.def("create", &create, py::call_guard<py::gil_scoped_release>());
  module.def("announce_end", &torch_distributed::announce_end, py::call_guard<py::gil_scoped_release>());
}

}  // namespace dtrain::python
