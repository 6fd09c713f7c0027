#include "python_trial.h"

#include <utility>

#include <torch/csrc/utils/pybind.h>

#include "python_error.h"

namespace dtrain::python {

namespace py = pybind11;

namespace {

// Releases Python's objects with the GIL; at the end of the process they are leaked.
void let_go(std::initializer_list<py::object*> objects) {
  if (!Py_IsInitialized()) {
    for (py::object* object : objects) object->release();
    return;
  }
  const py::gil_scoped_acquire gil;
  for (py::object* object : objects) *object = py::object();
}

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

}  // namespace

PythonSource::PythonSource(py::object source) : source_(std::move(source)) {}

PythonSource::~PythonSource() {
  let_go({&batches_, &source_});
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  structure_.reset();
}

void PythonSource::start_epoch_at(std::int64_t epoch, std::int64_t batches) {
  call_python("the loader", [&] { batches_ = source_.attr("epoch")(epoch, batches); });
}

std::optional<Batch> PythonSource::next() {
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

std::optional<std::int64_t> PythonSource::number(const char* method) const {
  return call_python("the loader", [&]() -> std::optional<std::int64_t> {
    const py::object value = source_.attr(method)();
    if (value.is_none()) return std::nullopt;
    return py::cast<std::int64_t>(value);
  });
}

PythonCallback::PythonCallback(py::object callback)
    : callback_(std::move(callback)), name_(py::cast<std::string>(py::type::of(callback_).attr("__name__"))) {}

PythonCallback::~PythonCallback() {
  let_go({&callback_});
}

void PythonCallback::receive(const Event& event) {
  call_python(name_ + "." + event.function + "()", [&] {
    callback_.attr(event.function)(event.position.batch, event.position.epoch, *std::visit(Given(), event.given));
  });
}

TrialState PythonCallback::save_state() {
  return call_python(name_ + ".state_dict()", [&] { return state_from(callback_.attr("state_dict")()); });
}

void PythonCallback::load_state(const TrialState& state) {
  call_python(name_ + ".load_state_dict()", [&] { callback_.attr("load_state_dict")(state_to_python(state)); });
}

PythonTrial::PythonTrial(const py::object& make, TrialContext& context) {
  call_python("the trial's constructor", [&] {
    trial_ = make(py::cast(&context, py::return_value_policy::reference));
    name_ = py::cast<std::string>(trial_.attr("name"));
  });
}

PythonTrial::~PythonTrial() {
  let_go({&trial_});
}

std::shared_ptr<PythonSource> PythonTrial::source(const char* method) {
  return call_python(std::string(method) + "()", [&]() -> std::shared_ptr<PythonSource> {
    py::object loader = trial_.attr(method)();
    return loader.is_none() ? nullptr : std::make_shared<PythonSource>(std::move(loader));
  });
}

Loader PythonTrial::training_loader() {
  training_ = source("training_loader");
  return training_;
}

Loader PythonTrial::validation_loader() {
  validation_ = source("validation_loader");
  return validation_;
}

Metrics PythonTrial::train_batch(const Batch& batch) {
  return call_python("train_batch()", [&] {
    return metrics_from(trial_.attr("train_batch")(training_->structure().with(batch.tensors)));
  });
}

Metrics PythonTrial::evaluate_batch(const Batch& batch) {
  return call_python("evaluate_batch()", [&] {
    return metrics_from(trial_.attr("evaluate_batch")(validation_->structure().with(batch.tensors)));
  });
}

std::vector<std::filesystem::path> PythonTrial::save_more(const std::filesystem::path& folder) {
  return call_python("save_more()", [&] {
    std::vector<std::filesystem::path> paths;
    for (const auto& path : trial_.attr("save_more")(folder.string()))
      paths.push_back(py::cast<std::string>(py::str(path)));
    return paths;
  });
}

TrialState PythonTrial::save_state() {
  return call_python("state_dict()", [&] { return state_from(trial_.attr("state_dict")()); });
}

void PythonTrial::load_state(const TrialState& state) {
  call_python("load_state_dict()", [&] { trial_.attr("load_state_dict")(state_to_python(state)); });
}

}  // namespace dtrain::python
