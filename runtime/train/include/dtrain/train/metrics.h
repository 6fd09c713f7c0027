// Named values, which train_batch() and evaluate_batch() return and context.log() takes. Unless a value says otherwise
// it is the mean over the batch's samples. dtrain reads a value, and copies it from the device, only when metrics are
// due.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "dtrain/base/error.h"

namespace dtrain {

// The ways in which the values of all batches and ranks become one value.
enum class Reduction : std::uint8_t {
  kMean,  // the mean, each batch weighted by its number of samples, or by mean_over()
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
  // Returns this value, marked as the mean over `weight` items (such as the targets of the batch that count) and not
  // over the batch's samples: the mean over all batches and ranks is then that over all items. With weight 0 the value
  // contributes nothing, whatever it is; a metric whose weights are all 0 is nan. Error unless the reduction is kMean,
  // and the weight finite and not negative. A CUDA graph does not repeat a step that returns such a value.
  MetricValue mean_over(double weight) const {
    if (reduction_ != Reduction::kMean || !(std::isfinite(weight) && weight >= 0)) {
      throw Error("MetricValue::mean_over() was given the weight " + std::to_string(weight) +
                      (reduction_ == Reduction::kMean ? "" : " for a value that is no mean"),
                  "give means a weight that is finite and not negative, and other values none");
    }
    MetricValue weighted = *this;
    weighted.weight_ = weight;
    return weighted;
  }
  // The weight of mean_over(); empty: the batch's number of samples.
  std::optional<double> weight() const { return weight_; }
  // May wait for the device.
  double value() const { return tensor_.defined() ? tensor_.item<double>() : value_; }
  // Returns the value as a number, which later changes of the tensor do not reach. May wait for the device.
  MetricValue as_number() const {
    MetricValue number = *this;
    number.value_ = value();
    number.tensor_ = at::Tensor();
    return number;
  }
  // Undefined if the value is a number.
  const at::Tensor& tensor() const { return tensor_; }
  bool is_on_device() const { return tensor_.defined() && !tensor_.is_cpu(); }
  Reduction reduction() const { return reduction_; }

 private:
  double value_ = 0;
  at::Tensor tensor_;
  Reduction reduction_;
  std::optional<double> weight_;
};

using Metrics = std::map<std::string, MetricValue>;

}  // namespace dtrain
