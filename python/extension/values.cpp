#include "values.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "dtrain/base/error.h"

namespace dtrain::python {

namespace py = pybind11;

namespace {

// The key that marks the place of a tensor in a state: {"__tensor__": "0/momentum"}.
constexpr const char* kTensorKey = "__tensor__";

py::object batch_parts(const char* function) {
  return py::module_::import("dtrain.batch_parts").attr(function);
}

bool is_tensor(py::handle value) {
  return THPVariable_Check(value.ptr());
}

// JSON has no infinity and no nan, and ours no integer of more than 64 bits: such a number becomes {"__float__":
// "inf"},
// {"__int__": "36893488147419103233"}.
constexpr const char* kFloat = "__float__";
constexpr const char* kInt = "__int__";

bool is_finite(py::handle value) {
  return std::isfinite(PyFloat_AS_DOUBLE(value.ptr()));
}

bool has_64_bits(py::handle value) {
  int overflow = 0;
  static_cast<void>(PyLong_AsLongLongAndOverflow(value.ptr(), &overflow));
  return overflow == 0;
}

// The key that marks the place of an array of numpy.
constexpr const char* kArrayKey = "__ndarray__";

bool is_array(py::handle value) {
  return std::strcmp(Py_TYPE(value.ptr())->tp_name, "numpy.ndarray") == 0;
}

at::Tensor tensor_of_array(py::handle value) {
  const py::object tensor = py::module_::import("torch").attr("as_tensor")(value);
  return THPVariable_Unpack(tensor.ptr());
}

// The place of a value in a state. Its text is made only where it is needed: a state is taken after each batch.
struct Path {
  const Path* in = nullptr;
  std::string_view name;
  std::string text() const { return in ? in->text() + "/" + std::string(name) : std::string(name); }
};

// A value of a state; its tensors go into `state` by their paths. ConfigError for a type that no state can have.
Json take_tensors(py::handle value, const Path& path, TrialState& state) {
  if (value.is_none()) return nullptr;
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyLong_Check(value.ptr()) && has_64_bits(value)) return PyLong_AsLongLong(value.ptr());
  if (PyFloat_Check(value.ptr()) && is_finite(value)) return PyFloat_AS_DOUBLE(value.ptr());
  if (PyUnicode_Check(value.ptr())) return py::cast<std::string>(value);
  if (is_tensor(value)) {
    state.tensors[path.text()] = THPVariable_Unpack(value.ptr()).detach();
    return {{kTensorKey, path.text()}};
  }
  if (PyDict_Check(value.ptr())) {
    // Items are stored as pairs, because keys may be no texts, such as the numbers of an optimizer's parameters.
    Json items = Json::array();
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      const bool is_text = PyUnicode_Check(key.ptr());
      std::string name = is_text ? py::cast<std::string>(key) : py::cast<std::string>(py::str(key));
      Json pair = Json::array();
      Json taken = take_tensors(item, {&path, name}, state);
      pair.push_back(is_text ? Json(std::move(name)) : json_from(key));
      pair.push_back(std::move(taken));
      items.push_back(std::move(pair));
    }
    Json dict = Json::object();
    dict["__dict__"] = std::move(items);
    return dict;
  }
  const bool is_list = PyList_Check(value.ptr());
  if (is_list || PyTuple_Check(value.ptr())) {
    Json items = Json::array();
    for (const auto& item : py::reinterpret_borrow<py::sequence>(value)) {
      const std::string number = std::to_string(items.size());
      items.push_back(take_tensors(item, {&path, number}, state));
    }
    return is_list ? items : Json{{"__tuple__", std::move(items)}};
  }
  try {
    if (!is_array(value)) return json_from(value);
    state.tensors[path.text()] = tensor_of_array(value);
    return {{kArrayKey, path.text()}};
  } catch (const py::error_already_set& error) {
    throw ConfigError(
        path.text() + " cannot be saved: it is of type " + Py_TYPE(value.ptr())->tp_name + " (" +
            py::cast<std::string>(py::str(error.value())) + ")",
        "a state is made of tensors, arrays of numpy, numbers, texts, and dicts, lists and tuples of them");
  }
}

py::object put_tensors(const py::object& value, const TrialState& state) {
  if (py::isinstance<py::list>(value)) {
    py::list items;
    for (const auto& item : py::reinterpret_borrow<py::list>(value)) {
      items.append(put_tensors(py::reinterpret_borrow<py::object>(item), state));
    }
    return items;
  }
  if (!py::isinstance<py::dict>(value)) return value;
  const auto dict = py::reinterpret_borrow<py::dict>(value);
  if (dict.contains(kTensorKey)) return py::cast(state.tensors.at(py::cast<std::string>(dict[kTensorKey])));
  if (dict.contains(kArrayKey)) {
    return py::cast(state.tensors.at(py::cast<std::string>(dict[kArrayKey])).clone()).attr("numpy")();
  }
  if (dict.contains("__tuple__")) return py::tuple(put_tensors(dict["__tuple__"], state));
  if (!dict.contains("__dict__")) return value;
  py::dict result;
  for (const auto& pair : py::reinterpret_borrow<py::list>(dict["__dict__"])) {
    const auto entry = py::reinterpret_borrow<py::sequence>(pair);
    py::object key = entry[0];
    if (py::isinstance<py::list>(key)) key = py::tuple(key);
    result[key] = put_tensors(entry[1], state);
  }
  return result;
}

py::object with_plain_numbers(py::handle value) {
  const bool is_float = PyFloat_Check(value.ptr());
  if (is_float ? !is_finite(value) : PyLong_Check(value.ptr()) && !has_64_bits(value)) {
    py::dict marked;
    marked[is_float ? kFloat : kInt] = py::str(value);
    return marked;
  }
  if (py::isinstance<py::dict>(value)) {
    py::dict result;
    for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) result[key] = with_plain_numbers(item);
    return result;
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    py::list result;
    for (const py::handle item : value) result.append(with_plain_numbers(item));
    return result;
  }
  return py::reinterpret_borrow<py::object>(value);
}

py::object with_all_numbers(const py::dict& value) {
  if (value.size() != 1) return value;
  if (value.contains(kFloat)) return py::float_(py::reinterpret_borrow<py::object>(value[kFloat]));
  if (value.contains(kInt)) return py::int_(py::reinterpret_borrow<py::object>(value[kInt]));
  return value;
}

}  // namespace

Batch PythonBatch::flatten(const py::object& batch, std::shared_ptr<PythonBatch>& structure) {
  structure = std::make_shared<PythonBatch>();
  structure->batch_ = batch;
  structure->tensors_ = py::list(batch_parts("tensors_of")(batch));
  Batch result;
  for (const py::handle tensor : structure->tensors_) {
    result.names.push_back(std::to_string(result.names.size()));
    result.tensors.push_back(THPVariable_Unpack(tensor.ptr()));
  }
  return result;
}

py::object PythonBatch::with(const std::vector<at::Tensor>& tensors) const {
  bool same = true;
  py::list others;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const py::object before = tensors_[i];
    const bool stays = THPVariable_Unpack(before.ptr()).is_same(tensors[i]);
    others.append(stays ? before : py::cast(tensors[i]));
    same = same && stays;
  }
  return same ? batch_ : batch_parts("with_tensors")(batch_, others);
}

Reduction reduction_named(const std::string& name) {
  if (name == "mean") return Reduction::kMean;
  if (name == "sum") return Reduction::kSum;
  if (name == "min") return Reduction::kMin;
  if (name == "max") return Reduction::kMax;
  throw ConfigError("there is no reduction '" + name + "'", "mean, sum, min and max are those there are");
}

double number_from(const std::string& name, py::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() == nullptr) return number;
  const py::error_already_set error;
  throw ConfigError("the metric '" + name + "' is of type " + Py_TYPE(value.ptr())->tp_name + ": " +
                        py::cast<std::string>(py::str(error.value())),
                    "give a number, or a tensor of one element");
}

MetricValue metric_from(const std::string& name, py::handle value) {
  if (is_tensor(value)) return MetricValue(THPVariable_Unpack(value.ptr()));
  const bool has_parts = py::isinstance<py::tuple>(value) && py::len(value) == 3;  // dtrain.Metric
  if (!has_parts) return MetricValue(number_from(name, value));
  const auto parts = py::reinterpret_borrow<py::tuple>(value);
  const Reduction reduction = reduction_named(py::cast<std::string>(py::str(parts[1])));
  const MetricValue plain = is_tensor(parts[0]) ? MetricValue(THPVariable_Unpack(parts[0].ptr()), reduction)
                                                : MetricValue(number_from(name, parts[0]), reduction);
  return parts[2].is_none() ? plain : plain.mean_over(number_from(name, parts[2]));
}

Metrics metrics_from(py::handle values) {
  Metrics metrics;
  if (values.is_none()) return metrics;
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(values)) {
    const auto name = py::cast<std::string>(key);
    metrics[name] = metric_from(name, value);
  }
  return metrics;
}

Json json_from(py::handle value) {
  return Json::parse(py::cast<std::string>(py::module_::import("json").attr("dumps")(with_plain_numbers(value))));
}

py::object json_to_python(const Json& value) {
  return py::module_::import("json").attr("loads")(value.dump(),
                                                   py::arg("object_hook") = py::cpp_function(with_all_numbers));
}

TrialState state_from(py::handle state) {
  TrialState result;
  if (state.is_none()) return result;
  result.values = Json::object();
  result.values["python"] = take_tensors(state, {nullptr, "state"}, result);
  return result;
}

py::object state_to_python(const TrialState& state) {
  const auto found = state.values.find("python");
  if (found == state.values.end()) return py::none();
  return put_tensors(json_to_python(*found), state);
}

}  // namespace dtrain::python
