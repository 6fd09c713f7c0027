// Validation metrics that are computed from sums over all samples, such as counts for each class. Their memory does not
// grow with the number of samples, unlike that of a GatheredMetric.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace dtrain {

// Subclass it for a metric of your own, and pass it to TrialContext::add_metric(). evaluate_batch() gives it its values
// of a batch. Used by the training thread alone.
class SummedMetric {
 public:
  virtual ~SummedMetric() = default;

  // Returns the metric's value from the sum over all ranks: float64, on the CPU, in the shape of the tensors added.
  // Called on every rank after each validation. If no rank has added anything, the metric has no value, and this
  // function is not called.
  virtual double compute(const at::Tensor& sums) = 0;

  // Adds a tensor of numbers, on any device, to this rank's sum, which is float64. The shape is the same in each call
  // (Error) and on each rank (Error after the validation).
  void add(const at::Tensor& values);

  // Used by the validation: returns the sum of the tensors added since the last call; undefined: there were none.
  at::Tensor take() { return std::exchange(sum_, at::Tensor()); }

 private:
  at::Tensor sum_;
};

// The base of metrics of classes or labels: for each of them it counts how often it is right, predicted, and actual.
// The metric is the mean over the classes or labels; those that are neither predicted nor actual anywhere are left out.
// nan if none is left.
class ClassMetric : public SummedMetric {
 public:
  // Adds class numbers below `classes`: the predicted ones and the targets; whole numbers, in tensors of one shape.
  // `counted`: booleans of the same shape, false where a target does not count; undefined: all count.
  void add_classes(const at::Tensor& predicted, const at::Tensor& target, std::int64_t classes,
                   const at::Tensor& counted = {});
  // Adds labels [samples, labels], of which several may be true: booleans, or 0 and 1.
  void add_labels(const at::Tensor& predicted, const at::Tensor& target);

  double compute(const at::Tensor& sums) final;

 protected:
  // Returns the value of each class or label, from its counts; 0 / 0 where all are 0.
  virtual at::Tensor of_each(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const = 0;
};

// 2 * right / (predicted + actual): the harmonic mean of precision and recall ("macro" F1).
class F1 final : public ClassMetric {
 protected:
  at::Tensor of_each(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const override;
};

// right / (predicted + actual - right): intersection over union.
class MeanIou final : public ClassMetric {
 protected:
  at::Tensor of_each(const at::Tensor& right, const at::Tensor& predicted, const at::Tensor& actual) const override;
};

}  // namespace dtrain
