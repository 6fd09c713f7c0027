#include "optimizer_groups.h"

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/python_variable.h>

#include "dtrain/base/error.h"
#include "python_error.h"

namespace dtrain::python {

namespace py = pybind11;

namespace {

// Reads a struct's settings by their names.
struct Settings {
  py::dict values;

  void read(const char* name, double& into) const {
    if (values.contains(name)) into = py::cast<double>(values[name]);
  }
  void read(const char* name, bool& into) const {
    if (values.contains(name)) into = py::cast<bool>(values[name]);
  }
};

Optimizer optimizer_of(const std::string& kind, const py::dict& values) {
  const Settings from{values};
  const auto averages = [&](auto optimizer) {
    from.read("lr", optimizer.lr);
    from.read("beta1", optimizer.beta1);
    from.read("beta2", optimizer.beta2);
    from.read("eps", optimizer.eps);
    from.read("weight_decay", optimizer.weight_decay);
    return optimizer;
  };
  if (kind == Adam::kWord) return averages(Adam());
  if (kind == AdamW::kWord) return averages(AdamW());
  if (kind == RAdam::kWord) return averages(RAdam());
  if (kind == Sgd::kWord) {
    Sgd sgd;
    from.read("lr", sgd.lr);
    from.read("momentum", sgd.momentum);
    from.read("dampening", sgd.dampening);
    from.read("weight_decay", sgd.weight_decay);
    from.read("nesterov", sgd.nesterov);
    return sgd;
  }
  if (kind == RmsProp::kWord) {
    RmsProp rms;
    from.read("lr", rms.lr);
    from.read("alpha", rms.alpha);
    from.read("eps", rms.eps);
    from.read("momentum", rms.momentum);
    from.read("weight_decay", rms.weight_decay);
    from.read("centered", rms.centered);
    return rms;
  }
  if (kind == Adagrad::kWord) {
    Adagrad adagrad;
    from.read("lr", adagrad.lr);
    from.read("lr_decay", adagrad.lr_decay);
    from.read("eps", adagrad.eps);
    from.read("weight_decay", adagrad.weight_decay);
    return adagrad;
  }
  throw ConfigError("there is no optimizer '" + kind + "'");
}

// A parameter group of Python's optimizer, let go of with the GIL.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (!Py_IsInitialized()) {
              held->release();
            } else {
              const py::gil_scoped_acquire gil;
              *held = py::object();
            }
            delete held;
          }};
}

// The rate of the next step, as a factor of the one that the group began with.
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
    const auto values = py::reinterpret_borrow<py::dict>(settings[i]);
    // A group that begins at 0 (a warm-up) has its rates as they are.
    const double begins = py::cast<double>(values["lr"]);
    const double base = begins > 0 ? begins : 1.0;
    values["lr"] = base;
    const Optimizer optimizer = optimizer_of(kind, values);
    if (i == 0) first = optimizer;
    groups.push_back({"param_groups[" + std::to_string(i) + "]", includes(group), optimizer, rate_in(group, base)});
  }
  if (groups.empty()) throw ConfigError("the optimizer has no parameter groups");
  // Parameters in none of its groups are not updated: the optimizer does not know them.
  std::visit([](auto& optimizer) { optimizer.lr = 0; }, first);
  if (model.empty()) {
    context.wrap_optimizer(first, std::move(groups));
  } else {
    context.wrap_optimizer(model, first, std::move(groups));
  }
}

}  // namespace dtrain::python
