// The state of the engine's step for Python: the optimizer's state of each parameter, and averaged gradients for
// Python's optimizers that update by themselves. Collective, between two batches.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"
#include "model/optimizer_update.h"
#include "python_error.h"
#include "state_visitor.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

// An optimizer's state of one parameter.
struct ParameterState {
  std::int64_t updates = 0;                   // number of updates so far
  std::map<std::string, at::Tensor> tensors;  // by the engine's names: exp_avg, momentum
};

constexpr std::string_view kOptimizer = "optimizer/";
constexpr std::string_view kUpdates = "updates/";
constexpr const char* kGradient = "averaged_gradient";

// Returns "exp_avg/layers.0.weight" for "optimizer/exp_avg/layers.0.weight"; empty: no entry of the optimizer.
std::string of_optimizer(const std::string& path) {
  return path.starts_with(kOptimizer) ? path.substr(kOptimizer.size()) : std::string();
}

// Calls a function for each entry of the optimizer; other entries stay unchanged.
class OptimizerVisitor : public train::StateVisitor {
 protected:
  void on_tensor(const std::string& path, at::Tensor value) final {
    const std::string entry = of_optimizer(path);
    const auto slash = entry.find('/');
    if (slash != std::string::npos) see_tensor(entry.substr(slash + 1), entry.substr(0, slash), value);
  }
  void on_number(const std::string& path, std::int64_t& value) final {
    const std::string entry = of_optimizer(path);
    if (entry.starts_with(kUpdates)) see_updates(entry.substr(kUpdates.size()), value);
    if (entry == "steps") see_steps(value);
  }
  void on_real(const std::string&, double&) final {}
  void on_reals(const std::string&, std::vector<float>&) final {}
  void on_text(const std::string&, std::string&) final {}

  virtual void see_tensor(const std::string& parameter, const std::string& name, at::Tensor& value) = 0;
  virtual void see_updates(const std::string& parameter, std::int64_t& updates) = 0;
  virtual void see_steps(std::int64_t&) {}
};

class Reader final : public OptimizerVisitor {
 public:
  explicit Reader(bool whole) : whole_(whole) {}
  bool replaces() const override { return false; }
  bool needs_whole() const override { return whole_; }
  std::map<std::string, ParameterState> result;

 protected:
  void see_tensor(const std::string& parameter, const std::string& name, at::Tensor& value) override {
    result[parameter].tensors[name] = whole_ ? value.clone() : value;
  }
  void see_updates(const std::string& parameter, std::int64_t& updates) override {
    result[parameter].updates = updates;
  }

 private:
  bool whole_;
};

// Reads the number of optimizer steps since training began, including earlier runs, and the number of batches in the
// open aggregation window.
class StepsReader final : public train::StateVisitor {
 public:
  bool replaces() const override { return false; }
  bool needs_whole() const override { return false; }
  std::int64_t made = 0;
  std::int64_t open_batches = 0;

 protected:
  void on_tensor(const std::string&, at::Tensor) override {}
  void on_number(const std::string& path, std::int64_t& value) override {
    if (path == "optimizer/steps") made = value;
    if (path == "window/rounds") open_batches = value;
  }
  void on_real(const std::string&, double&) override {}
  void on_reals(const std::string&, std::vector<float>&) override {}
  void on_text(const std::string&, std::string&) override {}
};

// Before the first batch. ConfigError: a tensor of a parameter is missing or has another shape.
class Replacer final : public OptimizerVisitor {
 public:
  explicit Replacer(const std::map<std::string, ParameterState>& state) : state_(state) {}
  bool replaces() const override { return true; }

 protected:
  void see_tensor(const std::string& parameter, const std::string& name, at::Tensor& value) override {
    const auto found = state_.find(parameter);
    if (found == state_.end()) return;  // the parameter has had no update
    const auto tensor = found->second.tensors.find(name);
    if (tensor == found->second.tensors.end() || tensor->second.sizes() != value.sizes()) {
      throw ConfigError("the optimizer's state of '" + parameter + "' has no '" + name + "' of this parameter's shape",
                        "load the state of an optimizer of the same kind and settings, for the same model");
    }
    value.copy_(tensor->second);
  }
  void see_updates(const std::string& parameter, std::int64_t& updates) override {
    const auto found = state_.find(parameter);
    updates = found == state_.end() ? 0 : found->second.updates;
  }
  void see_steps(std::int64_t& steps) override {
    for (const auto& [name, state] : state_) steps = std::max(steps, state.updates);
  }

 private:
  const std::map<std::string, ParameterState>& state_;
};

void visit(TrialContext& context, train::StateVisitor& visitor) {
  const auto& visit_state = context.wrapped().visit_state;
  if (!visit_state) throw Error("the optimizer has a state only while training runs");
  const at::NoGradGuard no_grad;
  visit_state(visitor);
}

class KeepGradients final : public train::OptimizerUpdate {
 public:
  explicit KeepGradients(std::shared_ptr<bool> updated) : updated_(std::move(updated)) {}
  double learning_rate() const override { return 1; }  // the schedule has the rate
  std::vector<std::string> state_names() const override { return {kGradient}; }
  void update(const at::Tensor&, const at::Tensor& gradients, at::TensorList states,
              const train::UpdateStep& step) const override {
    states[0].copy_(gradients);
    if (step.device.divisor.defined()) states[0].div_(step.device.divisor);
    *updated_ = true;
  }

 private:
  std::shared_ptr<bool> updated_;
};

// Returns the state by parameter name. `whole`: complete copies on every rank; otherwise the engine's own tensors, in
// which only the part that this rank updates is current.
std::map<std::string, ParameterState> read_optimizer_state(TrialContext& context, bool whole) {
  Reader reader(whole);
  visit(context, reader);
  return std::move(reader.result);
}

// For an optimizer that is not the engine's: updates only keep the averaged gradients and do not change the parameters.
class AveragedGradients {
 public:
  // ConfigError with options that need the engine's updates.
  explicit AveragedGradients(TrialContext& context) : context_(context) {
    const config::Optimizations& wanted = context.session().experiment().optimizations;
    const auto refuse = [](const std::string& key) {
      throw ConfigError(
          key + " needs an optimizer that dtrain computes itself: SGD, Adam, AdamW, RAdam, RMSprop, Adagrad",
          "remove the key, or use one of these optimizers");
    };
    if (wanted.mixed_precision != config::Precision::kFloat32) refuse("optimizations.mixed_precision");
    if (wanted.local_sgd) refuse("optimizations.local_sgd");
    if (wanted.ema > 0) refuse("optimizations.ema");
    if (wanted.sharded_optimizer == config::ShardedOptimizer::kOn) refuse("optimizations.sharded_optimizer");
    if (wanted.sharded_gradients == config::ShardedGradients::kOn) refuse("optimizations.sharded_gradients");
    context.wrap_optimizer(Sgd());
    context.wrapped().own_update = [updated = updated_] { return std::make_unique<KeepGradients>(updated); };
    context.wrapped().schedule = [rate = rate_](std::int64_t step) { return (*rate)(step); };
  }

  // Returns true if there was an update since the last call; false while batches are aggregated.
  bool take_updated() { return std::exchange(*updated_, false); }

  // Returns the gradients by parameter name, always in the same tensors. Collective at the first call.
  const std::map<std::string, at::Tensor>& gradients() {
    if (!gradients_.empty()) return gradients_;
    for (auto& [parameter, state] : read_optimizer_state(context_, /*whole=*/false)) {
      const auto found = state.tensors.find(kGradient);
      if (found != state.tensors.end()) gradients_[parameter] = found->second;
    }
    return gradients_;
  }

  // Sets the learning rate that metrics.jsonl has, instead of 0.
  void show_rate(LrSchedule rate) { *rate_ = std::move(rate); }

 private:
  TrialContext& context_;
  std::shared_ptr<bool> updated_ = std::make_shared<bool>(false);
  std::shared_ptr<LrSchedule> rate_ = std::make_shared<LrSchedule>([](std::int64_t) { return 0.0; });
  std::map<std::string, at::Tensor> gradients_;
};

// Converts Python's form of the state: {"layers.0.weight": (updates, {"exp_avg": tensor})}.
std::map<std::string, ParameterState> states_from(const py::dict& values) {
  std::map<std::string, ParameterState> result;
  for (const auto& [name, value] : values) {
    const auto pair = py::reinterpret_borrow<py::tuple>(value);
    result[py::cast<std::string>(name)] = {py::cast<std::int64_t>(pair[0]),
                                           py::cast<std::map<std::string, at::Tensor>>(pair[1])};
  }
  return result;
}

}  // namespace

void add_optimizer_state(py::module_& module) {
  module.def("read_optimizer_state", [](TrialContext& context) {
    std::map<std::string, ParameterState> state;
    {
      const py::gil_scoped_release unlocked;
      state = read_optimizer_state(context, /*whole=*/true);
    }
    py::dict result;
    for (const auto& [name, of] : state) result[py::str(name)] = py::make_tuple(of.updates, py::cast(of.tensors));
    return result;
  });
  module.def("optimizer_steps", [](TrialContext& context) {
    StepsReader steps;
    {
      const py::gil_scoped_release unlocked;
      visit(context, steps);
    }
    return py::make_tuple(steps.made, steps.open_batches);
  });
  module.def("replace_optimizer_state", [](TrialContext& context, const py::dict& values) {
    const auto state = states_from(values);
    const py::gil_scoped_release unlocked;
    Replacer replacer(state);
    visit(context, replacer);
  });
  py::class_<AveragedGradients>(module, "AveragedGradients")
      .def(py::init<TrialContext&>(), py::keep_alive<1, 2>())
      .def("take_updated", &AveragedGradients::take_updated)
      .def("show_rate",
           [](AveragedGradients& self, py::object rate) {
             const py::handle call = rate.release();  // Python's modules live as long as the process
             self.show_rate([call](std::int64_t) {
               return call_python("reading the learning rate",
                                  [&] { return py::cast<double>(py::reinterpret_borrow<py::object>(call)()); });
             });
           })
      .def("gradients", &AveragedGradients::gradients, Unlocked());
}

}  // namespace dtrain::python
