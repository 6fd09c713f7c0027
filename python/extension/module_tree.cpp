#include "module_tree.h"

#include <utility>

#include <torch/csrc/autograd/python_variable.h>

#include "dtrain/base/error.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

// Calls `add` for the named members that are not None.
template <typename Add>
void for_each_member(const py::object& module, const char* members, const Add& add) {
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(module.attr(members))) {
    if (!value.is_none()) add(py::cast<std::string>(key), value);
  }
}

at::Tensor tensor_of(const std::string& name, py::handle value) {
  if (!THPVariable_Check(value.ptr())) throw ConfigError("'" + name + "' of the model is no tensor");
  const py::object lazy = py::module_::import("torch.nn.parameter").attr("UninitializedTensorMixin");
  if (py::isinstance(value, lazy)) {
    throw ConfigError("the parameter '" + name + "' of the model has no shape yet",
                      "run a batch through the model before it is wrapped");
  }
  return THPVariable_Unpack(value.ptr());
}

}  // namespace

ModuleTree::ModuleTree(py::object module, const py::dict& beside)
    : torch::nn::Module(py::cast<std::string>(py::type::of(module).attr("__name__"))),
      module_(std::move(module)),
      root_(this) {
  add_members();
  for (const auto& [name, one] : beside) {
    std::shared_ptr<ModuleTree> child(new ModuleTree(py::reinterpret_borrow<py::object>(one), root_));
    for (const auto& parameter : child->named_parameters(/*recurse=*/false)) child->left_out_.insert(parameter.key());
    register_module(py::cast<std::string>(name), std::move(child));
  }
  take_modes();
}

ModuleTree::ModuleTree(py::object module, ModuleTree* root)
    : torch::nn::Module(py::cast<std::string>(py::type::of(module).attr("__name__"))),
      module_(std::move(module)),
      root_(root) {
  add_members();
}

ModuleTree::~ModuleTree() {
  if (!Py_IsInitialized()) {
    module_.release();
    return;
  }
  const py::gil_scoped_acquire gil;
  module_ = py::object();
}

void ModuleTree::add_members() {
  for_each_member(module_, "_parameters", [&](const std::string& name, py::handle value) {
    const at::Tensor tensor = tensor_of(name, value);
    register_parameter(name, tensor, tensor.requires_grad());
  });
  for_each_member(module_, "_buffers",
                  [&](const std::string& name, py::handle value) { register_buffer(name, tensor_of(name, value)); });
  for (const py::handle name : module_.attr("_non_persistent_buffers_set"))
    left_out_.insert(py::cast<std::string>(name));
  for_each_member(module_, "_modules", [&](const std::string& name, py::handle value) {
    register_module(name,
                    std::shared_ptr<ModuleTree>(new ModuleTree(py::reinterpret_borrow<py::object>(value), root_)));
  });
}

void ModuleTree::train(bool on) {
  if (root_->is_taking_modes_) {
    torch::nn::Module::train(on);
    return;
  }
  const py::gil_scoped_acquire gil;
  module_.attr("train")(on);
  root_->take_modes();
}

void ModuleTree::take_modes() {
  root_->is_taking_modes_ = true;
  const auto take = [](const auto& self, ModuleTree& tree) -> void {
    const bool training = py::cast<bool>(tree.module_.attr("training"));
    if (tree.is_training() != training) tree.torch::nn::Module::train(training);
    for (const auto& child : tree.children()) self(self, static_cast<ModuleTree&>(*child));
  };
  take(take, *root_);
  root_->is_taking_modes_ = false;
}

}  // namespace dtrain::python
