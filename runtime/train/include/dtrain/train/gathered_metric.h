// Validation metrics that are computed from values of all samples at once, which the ranks gather.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dtrain {

// Subclass it for a metric of your own, and pass it to TrialContext::add_metric(). evaluate_batch() gives it its values
// of a batch. Used by the training thread alone.
class GatheredMetric {
 public:
  virtual ~GatheredMetric() = default;

  // Returns the metric's value from the rows of all ranks, on the CPU: rank 0's first, each rank's in the order in
  // which it added them. Called on every rank after each validation. If no rank has added anything, the metric has no
  // value, and this function is not called.
  virtual double compute(const at::Tensor& rows) = 0;

  // Adds rows of this rank: a tensor on any device whose first dimension counts them. Types and the other dimensions
  // are the same in each call and on each rank.
  void add(const at::Tensor& rows) { added_.push_back(rows.detach()); }

  // Used by the validation: returns the rows that were added since the last call.
  std::vector<at::Tensor> take() { return std::exchange(added_, {}); }

 private:
  std::vector<at::Tensor> added_;
};

// The area under the ROC curve: the probability that a positive sample has a higher score than a negative one, ties
// counted as one half (Mann and Whitney's U). nan unless there are samples of both kinds.
class Auc final : public GatheredMetric {
 public:
  // Adds one score for each sample, and its class: 1 if it is positive, otherwise 0.
  void add(const at::Tensor& scores, const at::Tensor& labels);
  double compute(const at::Tensor& rows) override;
};

}  // namespace dtrain
