// Converts Python objects to the engine's values and back. Called with the GIL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "dtrain/base/json.h"
#include "dtrain/train/trial.h"

namespace dtrain::python {

// A Python batch whose tensors the engine moves to the device: any nesting of dicts, lists, tuples and data classes
// (dtrain/batch_parts.py). Other values in the batch stay unchanged.
class PythonBatch {
 public:
  // Returns the tensors of `batch`, and sets `structure`. The caller sets the number of samples.
  static Batch flatten(const pybind11::object& batch, std::shared_ptr<PythonBatch>& structure);
  // Returns the batch with these tensors in place of its own.
  pybind11::object with(const std::vector<at::Tensor>& tensors) const;

 private:
  pybind11::object batch_;
  pybind11::list tensors_;
};

// Converts {"loss": tensor or number, "rate": (value, reduction, weight or None)}. ConfigError names an invalid metric.
Metrics metrics_from(pybind11::handle values);
MetricValue metric_from(const std::string& name, pybind11::handle value);
// Converts a number (also a scalar of numpy or a boolean) or a tensor of one element.
double number_from(const std::string& name, pybind11::handle value);
// Converts mean, sum, min or max; ConfigError for another word.
Reduction reduction_named(const std::string& name);

Json json_from(pybind11::handle value);
pybind11::object json_to_python(const Json& value);

// Converts a trial's state, a dict: its tensors (also in nested dicts and lists) go into safetensors, the rest is JSON.
TrialState state_from(pybind11::handle state);
pybind11::object state_to_python(const TrialState& state);

}  // namespace dtrain::python
