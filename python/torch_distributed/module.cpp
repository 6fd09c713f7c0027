// The module dtrain._torch_distributed: what python/dtrain/torch_backend.py needs of libdtrain_torch_distributed.
#include <string>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <pybind11/functional.h>

#include "dtrain/torch_distributed/backend.h"
#include "dtrain/torch_distributed/device_backend.h"
#include "dtrain/torch_distributed/observer.h"
#include "source_line.h"

namespace py = pybind11;
using dtrain::torch_distributed::DeviceBackend;

namespace dtrain::python {
namespace {

// Python's reference to a group, which is given up without Python's lock: a group waits for its threads, and these may
// need the lock.
template <class T>
class GroupReference {
 public:
  GroupReference() = default;
  GroupReference(c10::intrusive_ptr<T> group) : group_(std::move(group)) {}  // NOLINT(google-explicit-constructor)
  explicit GroupReference(T* group) : group_(c10::intrusive_ptr<T>::unsafe_steal_from_new(group)) {}
  GroupReference(const GroupReference&) = default;
  GroupReference(GroupReference&&) noexcept = default;
  GroupReference& operator=(const GroupReference&) = default;
  GroupReference& operator=(GroupReference&&) noexcept = default;
  ~GroupReference() {
    if (!group_ || PyGILState_Check() == 0) return;
    const py::gil_scoped_release unlocked;
    group_.reset();
  }

  T* get() const { return group_.get(); }

 private:
  c10::intrusive_ptr<T> group_;
};

}  // namespace
}  // namespace dtrain::python

PYBIND11_DECLARE_HOLDER_TYPE(T, dtrain::python::GroupReference<T>, true)

namespace dtrain::python {
namespace {

DeviceBackend::Part create(const c10d::DistributedBackendOptions& options) {
  return c10::make_intrusive<torch_distributed::Backend>(options);
}

GroupReference<DeviceBackend> create_for_devices(const c10d::DistributedBackendOptions& options,
                                                 const DeviceBackend::Part& host, const DeviceBackend::Part& device,
                                                 DeviceBackend::Make make, const DeviceBackend::OptionsPtr& given) {
  return c10::make_intrusive<DeviceBackend>(options, DeviceBackend::Parts{.host = host, .device = device},
                                            std::move(make), given);
}

// What only NCCL's groups have: register_mem_pool(), comm_split_count(), uid, …
py::object attribute_of_part(const DeviceBackend& backend, const std::string& name) {
  const DeviceBackend::Part part = name.starts_with("__") ? nullptr : backend.device_part();
  if (!part) throw py::attribute_error("the backend dtrain has no attribute '" + name + "'");
  return py::cast(part).attr(name.c_str());
}

// Called on ranks that are not in a group that the others split off.
void perform_nocolor_split(const DeviceBackend& backend, const py::object& device) {
  const DeviceBackend::Part part = backend.device_part();
  if (part && part->supportsSplitting()) py::cast(part).attr("perform_nocolor_split")(device);
}

// `observer`: of dtrain._native.UnchangedScript.
void observe(const py::capsule& observer) {
  torch_distributed::observe(*observer.get_pointer<torch_distributed::Observer>());
}

}  // namespace

PYBIND11_MODULE(_torch_distributed, module) {
  const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<DeviceBackend, GroupReference<DeviceBackend>>(module, "DeviceBackend", backend)
      .def_property_readonly("host", &DeviceBackend::host_part)
      .def_property_readonly("device", &DeviceBackend::device_part)
      .def("perform_nocolor_split", &perform_nocolor_split)
      .def("__getattr__", &attribute_of_part);
  torch_distributed::set_source_line_finder(&find_source_line);
  module.def("skip_source_lines_of", &skip_source_lines_of);
  module.def("create", &create, py::call_guard<py::gil_scoped_release>());
  module.def("create_for_devices", &create_for_devices);
  module.def("observe", &observe);
  module.def("announce_end", &torch_distributed::announce_end, py::call_guard<py::gil_scoped_release>());
  module.def("write_flight_record", &torch_distributed::write_flight_record, py::call_guard<py::gil_scoped_release>());
}

}  // namespace dtrain::python
