// The engine's form of a Python nn.Module: a torch::nn::Module with the same names and the same tensors. Both share
// each TensorImpl, so Python's module computes with the engine's changes to a parameter (flat layout, updates).
// Training thread; functions take the GIL if they need it.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/nn/module.h>

#include "bindings.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"
#include "model/model_tensors.h"
#include "python_error.h"

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

class ModuleTree final : public torch::nn::Module, public train::LeavesTensorsOut {
 public:
  // Called with the GIL. ConfigError for a parameter that has no shape yet (a lazy module), and for a name that C++
  // cannot have. `beside`: modules by name that are trained with this one but are no part of its weights.
  ModuleTree(py::object module, const py::dict& beside)
      : torch::nn::Module(py::cast<std::string>(py::type::of(module).attr("__name__"))),
        module_(std::move(module)),
        root_(this) {
    add_members();
    for (const auto& [name, module_beside] : beside) {
      std::shared_ptr<ModuleTree> child(new ModuleTree(py::reinterpret_borrow<py::object>(module_beside), root_));
      for (const auto& parameter : child->named_parameters(/*recurse=*/false)) child->left_out_.insert(parameter.key());
      register_module(py::cast<std::string>(name), std::move(child));
    }
    take_modes();
  }

  ~ModuleTree() override { let_go({&module_}); }

  const std::set<std::string>& left_out() const override { return left_out_; }

  // Calls Python's train(), which a class may override, for example to keep a frozen batch norm in evaluation mode.
  void train(bool on = true) override {
    if (root_->is_taking_modes_) {
      torch::nn::Module::train(on);
      return;
    }
    const py::gil_scoped_acquire gil;
    module_.attr("train")(on);
    root_->take_modes();
  }

 private:
  ModuleTree(py::object module, ModuleTree* root)
      : torch::nn::Module(py::cast<std::string>(py::type::of(module).attr("__name__"))),
        module_(std::move(module)),
        root_(root) {
    add_members();
  }

  void add_members() {
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

  // Copies the modes of Python's modules.
  void take_modes() {
    root_->is_taking_modes_ = true;
    const auto take = [](const auto& self, ModuleTree& tree) -> void {
      const bool training = py::cast<bool>(tree.module_.attr("training"));
      if (tree.is_training() != training) tree.torch::nn::Module::train(training);
      for (const auto& child : tree.children()) self(self, static_cast<ModuleTree&>(*child));
    };
    take(take, *root_);
    root_->is_taking_modes_ = false;
  }

  py::object module_;
  std::set<std::string> left_out_;
  ModuleTree* root_;              // `this` for the root itself
  bool is_taking_modes_ = false;  // used in the root alone
};

// A model of torch.compile() keeps the strides that its weights had when it was compiled: those of convolutions must
// not change, as they do where the engine tries channels_last.
void keep_memory_format(TrialContext& context, const torch::nn::Module& model) {
  const config::MemoryFormat format = context.session().experiment().optimizations.memory_format;
  const auto parameters = model.parameters();
  const bool convolves =
      std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter.dim() > 3; });
  if (!convolves) return;
  context.wrapped().keeps_memory_format = true;
  if (format != config::MemoryFormat::kChannelsLast) return;
  throw ConfigError("optimizations.memory_format is " + std::string(config::word_of(config::kMemoryFormats, format)) +
                        ", and a model of torch.compile() with convolutions needs weights whose memory format stays",
                    "leave optimizations.memory_format at auto");
}

}  // namespace

void wrap_model(TrialContext& context, py::object module, const std::string& name, bool compiled,
                const py::dict& beside) {
  const auto tree = std::make_shared<ModuleTree>(std::move(module), beside);
  if (compiled) keep_memory_format(context, *tree);
  const py::gil_scoped_release unlocked;
  name.empty() ? void(context.wrap_model(tree)) : void(context.wrap_model(name, tree));
}

}  // namespace dtrain::python
