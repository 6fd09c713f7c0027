// What train_batch() and evaluate_batch() return, and what context.log() takes: named values. Unless a value says
// otherwise it is the mean over the batch's samples. dtrain reads a value, and copies it from the device, only when
// metrics are due.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace dtrain {

// How the values of all batches and ranks become one.
enum class Reduction : std::uint8_t {
  kMean,  // the mean, each batch weighted by its number of samples
  kSum,
  kMin,  // nan if a value is nan; the same with kMax
  kMax
};

// A number, or a tensor of one element on any device.
class MetricValue {
 public:
  MetricValue(double value = 0, Reduction reduction = Reduction::kMean) : value_(value), reduction_(reduction) {}
  MetricValue(at::Tensor value, Reduction reduction = Reduction::kMean)
      : tensor_(value.detach()), reduction_(reduction) {}
  // May wait for the device.
  double value() const { return tensor_.defined() ? tensor_.item<double>() : value_; }
  // Undefined if the value is a number.
  const at::Tensor& tensor() const { return tensor_; }
  bool is_on_device() const { return tensor_.defined() && !tensor_.is_cpu(); }
  Reduction reduction() const { return reduction_; }

 private:
  double value_ = 0;
  at::Tensor tensor_;
  Reduction reduction_;
};

using Metrics = std::map<std::string, MetricValue>;

}  // namespace dtrain
