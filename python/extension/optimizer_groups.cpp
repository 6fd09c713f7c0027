// Converts torch.optim's optimizers to the engine's: the settings of each parameter group, and learning rates that
// follow the values that Python writes into param_groups.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings.h"
#include "dtrain/base/choices.h"
#include "dtrain/base/error.h"
#include "dtrain/config/keys.h"
#include "python_error.h"

namespace dtrain::config {

// Reads the settings of an optimizer's struct, which declares their names as keys of an experiment. The declarations
// (dtrain/config/optimizers.h) look for their functions in this namespace.
class PythonSettings {
 public:
  explicit PythonSettings(pybind11::dict values) : values_(std::move(values)) {}
  void number(const Key& key, double& value, const Bounds&) { read(key.name, value); }
  void boolean(const Key& key, bool& value) { read(key.name, value); }
  void integer(const Key& key, std::int64_t& value, const Range&) { read(key.name, value); }
  void text(const Key& key, std::string& value) { read(key.name, value); }
  void betas(const Key& key, double& beta1, double& beta2) {
    if (values_.contains(key.name)) {
      std::tie(beta1, beta2) = pybind11::cast<std::pair<double, double>>(values_[pybind11::str(key.name)]);
    }
  }

 private:
  template <typename T>
  void read(const char* name, T& value) {
    if (values_.contains(name)) value = pybind11::cast<T>(values_[pybind11::str(name)]);
  }

  pybind11::dict values_;
};

inline void declare_betas(PythonSettings& settings, const Key& key, double& beta1, double& beta2) {
  settings.betas(key, beta1, beta2);
}
inline void declare_nesterov_needs(PythonSettings&, const Sgd&) {}  // PyTorch has checked this

}  // namespace dtrain::config

namespace dtrain::python {

namespace py = pybind11;

namespace {

Optimizer optimizer_of(const std::string& kind, const py::dict& values) {
  Optimizer optimizer = choice_named<Optimizer>(kind);
  config::PythonSettings settings(values);
  std::visit([&](auto& held) { held.declare_keys(settings); }, optimizer);
  return optimizer;
}

// Shares a parameter group of Python's optimizer; the deleter takes the GIL.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            let_go({held});
            delete held;
          }};
}

// Returns a schedule: the rate of the next step as a factor of the group's first rate.
LrSchedule rate_in(const py::dict& group, double first) {
  return [held = shared(group), first](std::int64_t) {
    return call_python("reading the learning rate", [&] {
      py::object rate = (*held)["lr"];
      if (THPVariable_Check(rate.ptr())) rate = rate.attr("item")();
      const double now = py::cast<double>(rate);
      return now == first ? 1.0 : now / first;
    });
  };
}

// Returns a gradient limit, which a group of torch.optim may have as an additional key; empty: none.
std::optional<double> limit_in(const py::dict& group, const char* key) {
  if (!group.contains(key) || group[key].is_none()) return std::nullopt;
  return py::cast<double>(group[key]);
}

// True if a parameter of the group is trained. PyTorch allows groups without trained parameters and skips them.
bool trains(const py::dict& group) {
  const auto parameters = py::reinterpret_borrow<py::list>(group["params"]);
  return std::any_of(parameters.begin(), parameters.end(),
                     [](py::handle tensor) { return THPVariable_Unpack(tensor.ptr()).requires_grad(); });
}

ParameterGroup::Includes includes(const py::dict& group) {
  auto impls = std::make_shared<std::set<const at::TensorImpl*>>();
  for (const auto& parameter : py::reinterpret_borrow<py::list>(group["params"])) {
    impls->insert(THPVariable_Unpack(parameter.ptr()).unsafeGetTensorImpl());
  }
  return
      [impls](const std::string&, const at::Tensor& tensor) { return impls->contains(tensor.unsafeGetTensorImpl()); };
}

}  // namespace

void wrap_optimizer(TrialContext& context, const std::string& model, const std::string& kind,
                    const py::list& param_groups, const py::list& settings) {
  std::vector<ParameterGroup> groups;
  Optimizer first;
  for (std::size_t i = 0; i < param_groups.size(); ++i) {
    const auto group = py::reinterpret_borrow<py::dict>(param_groups[i]);
    if (!trains(group)) continue;
    const auto values = py::reinterpret_borrow<py::dict>(settings[i]);
    // For a group that begins at rate 0 (a warm-up) the factor is the rate itself.
    const double begins = py::cast<double>(values["lr"]);
    const double base = begins > 0 ? begins : 1.0;
    values["lr"] = base;
    const Optimizer optimizer = optimizer_of(kind, values);
    if (groups.empty()) first = optimizer;
    groups.push_back({.name = "param_groups[" + std::to_string(i) + "]",
                      .includes = includes(group),
                      .optimizer = optimizer,
                      .schedule = rate_in(group, base),
                      .max_gradient_norm = limit_in(group, "max_gradient_norm"),
                      .max_gradient_value = limit_in(group, "max_gradient_value")});
  }
  if (groups.empty()) {
    throw ConfigError(
        "the optimizer has no parameter that requires a gradient",
        "let the parameters that it is to train require gradients (requires_grad_()) before it is wrapped");
  }
  // Parameters in no group are not updated, because the optimizer does not know them.
  std::visit([](auto& optimizer) { optimizer.lr = 0; }, first);
  if (model.empty()) {
    context.wrap_optimizer(first, std::move(groups));
  } else {
    context.wrap_optimizer(model, first, std::move(groups));
  }
}

}  // namespace dtrain::python
