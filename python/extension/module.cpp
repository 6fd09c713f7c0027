// The module dtrain._native, on which the Python modules in python/dtrain are based. Only those modules use it, so they
// have the docstrings. Functions that may wait release the GIL.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "dtrain/base/json.h"
#include "dtrain/base/nursery.h"
#include "dtrain/comm/control.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/add_norm.h"
#include "dtrain/train/linear_cross_entropy.h"
#include "numerics/matmul_path.h"
#include "python_error.h"
#include "values.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

// A scope for a `with` block.
class HeldScope {
 public:
  HeldScope(TrialContext& context, std::string name) : context_(context), name_(std::move(name)) {}
  void enter() { scope_.reset(new Scope(context_.scope(name_))); }
  void exit() { scope_.reset(); }

 private:
  TrialContext& context_;
  std::string name_;
  std::unique_ptr<Scope> scope_;
};

void write_validation(TrialContext& context, std::int64_t batch, std::int64_t epoch, const py::dict& metrics) {
  std::map<std::string, double> values;
  for (const auto& [key, value] : metrics) {
    const auto name = py::cast<std::string>(key);
    values[name] = number_from(name, value);
  }
  if (context.rank() != 0) return;
  context.session().write_metrics({{"kind", "validation"},
                                   {"batch", batch},
                                   {"epoch", epoch},
                                   {"samples", 0},
                                   {"metrics", numbers_or_texts(values)}});
}

void add_context(py::module_& module) {
  py::class_<HeldScope>(module, "Scope")
      .def("__enter__", &HeldScope::enter)
      .def("__exit__", [](HeldScope& scope, py::args) { scope.exit(); });
  py::class_<TrialContext>(module, "Context")
      .def_property_readonly("rank", &TrialContext::rank)
      .def_property_readonly("world_size", &TrialContext::world_size)
      .def_property_readonly("batch_size", &TrialContext::batch_size)
      .def_property_readonly("device", [](const TrialContext& context) { return context.device().str(); })
      .def_property_readonly("seed",
                             [](TrialContext& context) { return context.session().experiment().experiment_seed; })
      .def_property_readonly("run_dir", [](TrialContext& context) { return context.session().run_dir().string(); })
      .def_property_readonly("global_batch_size",
                             [](TrialContext& context) { return context.session().experiment().global_batch_size; })
      .def_property_readonly("predicts", [](TrialContext& context) { return !context.session().predictions().empty(); })
      .def_property_readonly("max_length",
                             [](TrialContext& context) {
                               const config::Length& length = context.session().experiment().searcher.max_length;
                               const char* unit = length.unit == config::LengthUnit::kEpochs    ? "epochs"
                                                  : length.unit == config::LengthUnit::kBatches ? "batches"
                                                                                                : "records";
                               return py::make_tuple(length.count, unit);
                             })
      .def_property_readonly(
          "aggregation_frequency",
          [](TrialContext& context) { return context.session().experiment().optimizations.aggregation_frequency; })
      .def("hyperparameter_names",
           [](TrialContext& context) {
             std::vector<std::string> names;
             for (const auto& item : context.session().experiment().hyperparameters.items())
               names.push_back(item.key());
             return names;
           })
      .def("hyperparameter", [](const TrialContext& context,
                                const std::string& name) { return json_to_python(context.hyperparameter<Json>(name)); })
      .def("data_names",
           [](TrialContext& context) {
             std::vector<std::string> names;
             for (const auto& item : context.session().experiment().data.items()) names.push_back(item.key());
             return names;
           })
      .def("data_value", [](const TrialContext& context,
                            const std::string& name) { return json_to_python(context.data().value(name, Json())); })
      .def("resolve",
           [](const TrialContext& context, const std::string& path) { return context.resolve(path).string(); })
      .def("info", [](TrialContext& context, const std::string& text) { context.session().log()->info("{}", text); })
      .def("warn", [](TrialContext& context, const std::string& text) { context.session().log()->warn("{}", text); })
      .def("use_global_batch_size",
           [](TrialContext& context, std::int64_t samples) { context.session().use_global_batch_size(samples); })
      .def("wrap_model", &wrap_model)
      .def("wrap_optimizer", &wrap_optimizer)
      .def("clip_gradient_norm", &TrialContext::clip_gradient_norm)
      .def("clip_gradient_value", &TrialContext::clip_gradient_value)
      .def("reduce_lr_on_plateau",
           [](TrialContext& context, double factor, std::int64_t patience, double min_delta, double min_factor) {
             context.reduce_lr_on_plateau({factor, patience, min_delta, min_factor});
           })
      .def("stop_early",
           [](TrialContext& context, const std::string& metric, bool smaller_is_better, std::int64_t patience,
              double min_delta) {
             context.stop_early({metric, smaller_is_better, patience, min_delta});
           })
      .def(
          "backward",
          [](TrialContext& context, const at::Tensor& loss, std::optional<double> weight,
             std::vector<std::string> models, bool more_follows, bool retain_graph) {
            context.backward(loss, {weight, std::move(models), more_follows, retain_graph});
          },
          Unlocked())
      .def("step", &TrialContext::step, Unlocked())
      .def("log", [](TrialContext& context, const std::string& name,
                     py::handle value) { context.log(name, metric_from(name, value)); })
      .def("log_image", &TrialContext::log_image, Unlocked())
      .def("log_histogram", &TrialContext::log_histogram, Unlocked())
      .def(
          "scope",
          [](TrialContext& context, const std::string& name) { return std::make_unique<HeldScope>(context, name); },
          py::keep_alive<0, 1>())
      .def("all_reduce",
           [](TrialContext& context, const at::Tensor& tensor, const std::string& reduction) {
             const Reduction by = reduction_named(reduction);
             const py::gil_scoped_release unlocked;
             return context.all_reduce(tensor, by);
           })
      .def("all_gather", &TrialContext::all_gather, Unlocked())
      .def("broadcast", &TrialContext::broadcast, Unlocked())
      .def(
          "gather_text",
          [](TrialContext& context, const std::string& name, const std::string& mine) {
            return context.session().control().gather("python/" + name, mine);
          },
          Unlocked())
      .def("save_checkpoint", &TrialContext::save_checkpoint)
      .def("add_callback",
           [](TrialContext& context, py::object callback) { context.add_callback(callback_of(std::move(callback))); })
      .def("add_own_callback",
           [](TrialContext& context, py::object callback) {
             context.add_callback(callback_of(std::move(callback)));
             ++context.around_the_loop().own_callbacks;
           })
      .def_property_readonly("logical_ranks",
                             [](TrialContext& context) -> std::optional<std::pair<int, int>> {
                               const rank::LogicalRanks& ranks = context.session().logical();
                               if (!ranks.virtuals) return std::nullopt;
                               return std::pair(ranks.begin, ranks.end);
                             })
      .def("write_validation", &write_validation);
}

at::Tensor linear_cross_entropy_of(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                                   const std::optional<at::Tensor>& bias, bool sum, std::int64_t ignore_index,
                                   double label_smoothing, std::int64_t chunk_bytes) {
  return linear_cross_entropy(input, weight, target,
                              {.linear_bias = bias.value_or(at::Tensor()),
                               .reduction = sum ? at::Reduction::Sum : at::Reduction::Mean,
                               .ignore_index = ignore_index,
                               .label_smoothing = label_smoothing,
                               .chunk_bytes = chunk_bytes});
}

std::tuple<at::Tensor, at::Tensor> add_layer_norm_of(const at::Tensor& input, const at::Tensor& residual,
                                                     const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                                     double eps) {
  const AddNormResult result = add_layer_norm(input, residual, weight, bias.value_or(at::Tensor()), eps);
  return {result.normalized, result.sum};
}
std::tuple<at::Tensor, at::Tensor> add_rms_norm_of(const at::Tensor& input, const at::Tensor& residual,
                                                   const at::Tensor& weight, std::optional<double> eps) {
  const AddNormResult result = add_rms_norm(input, residual, weight, eps);
  return {result.normalized, result.sum};
}

pid_t fork_python() {
  PyOS_BeforeFork();
  const pid_t pid = ::fork();
  pid == 0 ? PyOS_AfterFork_Child() : PyOS_AfterFork_Parent();
  return pid;
}

// Returns the variables of the new process, as NAME=value.
std::vector<py::bytes> serve_nursery_of_python() {
  serve_nursery(fork_python);
  std::vector<py::bytes> variables;
  for (char** entry = environ; *entry; ++entry) variables.emplace_back(*entry);
  return variables;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  train::watch_matmul();
  add_errors(module);
  add_context(module);
  add_script_loop(module);
  add_data_sets(module);
  add_optimizer_state(module);
  add_trial(module);
  add_unchanged_script(module);
  module.def("serve_nursery", &serve_nursery_of_python);
  module.def("linear_cross_entropy", &linear_cross_entropy_of, Unlocked());
  module.def("add_layer_norm", &add_layer_norm_of, Unlocked());
  module.def("add_rms_norm", &add_rms_norm_of, Unlocked());
}

}  // namespace dtrain::python
