// What train_batch() and evaluate_batch() return: named values, each the mean over the batch's samples. dtrain reads a
// value, and copies it from the device, only when metrics are due.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace dtrain {

// A number, or a tensor of one element on any device.
class MetricValue {
 public:
  MetricValue(double value = 0) : value_(value) {}
  MetricValue(at::Tensor value) : tensor_(value.detach()) {}
  // May wait for the device.
  double value() const { return tensor_.defined() ? tensor_.item<double>() : value_; }
  // Undefined if the value is a number.
  const at::Tensor& tensor() const { return tensor_; }
  bool is_on_device() const { return tensor_.defined() && !tensor_.is_cpu(); }

 private:
  double value_ = 0;
  at::Tensor tensor_;
};

using Metrics = std::map<std::string, MetricValue>;

}  // namespace dtrain
