// A trial in Python: the engine's calls of a Trial become calls of a Python object's methods.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "dtrain/train/run_trial.h"
#include "loop/logical_batches.h"
#include "loop/rank_training.h"
#include "python_error.h"
#include "values.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

// Makes what a method of a Python callback gets besides batch and epoch.
struct Given {
  py::tuple operator()(std::monostate) const { return py::tuple(); }
  py::tuple operator()(const Batch*) const { return py::tuple(); }
  py::tuple operator()(const Metrics* metrics) const {
    py::dict values;
    for (const auto& [name, value] : *metrics) {
      values[py::str(name)] =
          value.tensor().defined() ? py::object(py::cast(value.tensor())) : py::object(py::float_(value.value()));
    }
    return py::make_tuple(values);
  }
  py::tuple operator()(const std::map<std::string, double>* metrics) const {
    py::dict values;
    for (const auto& [name, value] : *metrics) values[py::str(name)] = value;
    return py::make_tuple(values);
  }
};

// The batches of a Python object with these methods (dtrain/sample_division.py):
// epoch(number: int, skip: int) -> iterator     length() -> int | None     samples() -> int | None and, for the last
// returned batch, `count` (Batch::samples) and `global_samples`.
class PythonSource final : public BatchSource {
 public:
  explicit PythonSource(py::object source) : source_(std::move(source)) {}
  ~PythonSource() override {
    let_go({&batches_, &source_});
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    structure_.reset();
  }
  void start_epoch(std::int64_t epoch) override { start_epoch_at(epoch, 0); }
  void start_epoch_at(std::int64_t epoch, std::int64_t batches) override {
    call_python("the loader", [&] { batches_ = source_.attr("epoch")(epoch, batches); });
  }
  std::optional<Batch> next() override {
    return call_python("the loader", [&]() -> std::optional<Batch> {
      PyObject* next = PyIter_Next(batches_.ptr());
      if (!next && PyErr_Occurred()) throw py::error_already_set();
      if (!next) return std::nullopt;
      Batch batch = PythonBatch::flatten(py::reinterpret_steal<py::object>(next), structure_);
      batch.samples = py::cast<std::int64_t>(source_.attr("count"));
      batch.global_samples = py::cast<std::int64_t>(source_.attr("global_samples"));
      return batch;
    });
  }
  std::optional<std::int64_t> batches_per_epoch() const override { return number("length"); }
  std::optional<std::int64_t> samples_per_epoch() const override { return number("samples"); }

  // The structure of the last batch.
  const PythonBatch& structure() const { return *structure_; }

 private:
  std::optional<std::int64_t> number(const char* method) const {
    return call_python("the loader", [&]() -> std::optional<std::int64_t> {
      const py::object value = source_.attr(method)();
      if (value.is_none()) return std::nullopt;
      return py::cast<std::int64_t>(value);
    });
  }

  py::object source_;
  py::object batches_;  // the iterator of the epoch
  std::shared_ptr<PythonBatch> structure_;
};

// A Python object with the methods of dtrain.Callback.
class PythonCallback final : public Callback {
 public:
  explicit PythonCallback(py::object callback)
      : callback_(std::move(callback)), name_(py::cast<std::string>(py::type::of(callback_).attr("__name__"))) {}
  ~PythonCallback() override { let_go({&callback_}); }
  std::string name() const override { return name_; }
  void receive(const Event& event) override {
    call_python(name_ + "." + event.function + "()", [&] {
      callback_.attr(event.function)(event.position.batch, event.position.epoch, *std::visit(Given(), event.given));
    });
  }
  TrialState save_state() override {
    return call_python(name_ + ".state_dict()", [&] { return state_from(callback_.attr("state_dict")()); });
  }
  void load_state(const TrialState& state) override {
    call_python(name_ + ".load_state_dict()", [&] { callback_.attr("load_state_dict")(state_to_python(state)); });
  }

 private:
  py::object callback_;
  std::string name_;
};

class PythonTrial final : public Trial {
 public:
  // `make` is called with the context and returns the trial (dtrain/trial.py).
  PythonTrial(const py::object& make, TrialContext& context) : context_(context) {
    call_python("the trial's constructor", [&] {
      trial_ = make(py::cast(&context, py::return_value_policy::reference));
      name_ = py::cast<std::string>(trial_.attr("name"));
    });
  }
  ~PythonTrial() override { let_go({&trial_}); }
  Loader training_loader() override { return loader_of("training_loader", training_); }
  Loader validation_loader() override { return loader_of("validation_loader", validation_); }
  Metrics train_batch(const Batch& batch) override {
    return call_python("train_batch()", [&] {
      return metrics_from(trial_.attr("train_batch")(structure(training_).with(batch.tensors)));
    });
  }
  Metrics evaluate_batch(const Batch& batch) override {
    return call_python("evaluate_batch()", [&] {
      return metrics_from(trial_.attr("evaluate_batch")(structure(validation_).with(batch.tensors)));
    });
  }
  at::Tensor predict_batch(const Batch& batch) override {
    return call_python("predict_batch()", [&] {
      return py::cast<at::Tensor>(trial_.attr("predict_batch")(structure(validation_).with(batch.tensors)));
    });
  }
  std::string why_not_repeatable() const override {
    return "the trial is written in Python, where a step may differ from the last one";
  }
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override {
    return call_python("save_more()", [&] {
      std::vector<std::filesystem::path> paths;
      for (const auto& path : trial_.attr("save_more")(folder.string()))
        paths.push_back(py::cast<std::string>(py::str(path)));
      return paths;
    });
  }
  TrialState save_state() override {
    return call_python("state_dict()", [&] { return state_from(trial_.attr("state_dict")()); });
  }
  void load_state(const TrialState& state) override {
    call_python("load_state_dict()", [&] { trial_.attr("load_state_dict")(state_to_python(state)); });
  }
  std::string state_owner() const override { return "the trial " + name_ + " in Python"; }

 private:
  using Sources = std::vector<std::shared_ptr<PythonSource>>;  // of each logical rank of this rank; empty: no loader

  Loader loader_of(const char* method, Sources& sources) {
    sources = call_python(std::string(method) + "()", [&] {
      Sources made;
      for (py::handle source : trial_.attr(method)()) {
        made.push_back(std::make_shared<PythonSource>(py::reinterpret_borrow<py::object>(source)));
      }
      return made;
    });
    if (sources.empty()) return nullptr;
    if (!context_.session().logical().virtuals) return sources.front();
    return std::make_shared<train::LogicalBatches>(context_.session(),
                                                   std::vector<Loader>(sources.begin(), sources.end()));
  }

  // The structure of the batch with which the trial computes now.
  const PythonBatch& structure(const Sources& sources) const {
    return sources[context_.session().logical().index()]->structure();
  }

  TrialContext& context_;
  py::object trial_;
  std::string name_;  // name of its class
  Sources training_;
  Sources validation_;
};

int run_python_trial(const py::object& make, std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int code = 0;
  {
    const py::gil_scoped_release unlocked;
    train::RankTraining training;
    code = train::run_training(training, static_cast<int>(arguments.size()), argv.data(),
                               [&](TrialContext& context) -> std::unique_ptr<Trial> {
                                 show_python_stacks();
                                 return std::make_unique<PythonTrial>(make, context);
                               });
  }
  const int wanted = exit_code_asked_for().value_or(0);
  return code != 0 && wanted != 0 ? wanted : code;
}

}  // namespace

std::shared_ptr<Callback> callback_of(py::object callback) {
  return std::make_shared<PythonCallback>(std::move(callback));
}

void add_trial(py::module_& module) {
  module.def("run_trial", &run_python_trial);
}

}  // namespace dtrain::python
