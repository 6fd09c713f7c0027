// Losses that compare each number of the output with one of the target, which has its shape.
#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "worker/loss.h"

namespace dtrain::worker {
namespace {

void check_labels(const at::Tensor& target) {
  const auto [least, most] = at::aminmax(target);
  for (const double value : {least.item<double>(), most.item<double>()}) {
    if (value >= 0 && value <= 1) continue;
    throw DataError("the target has the label " + std::to_string(value) + ", outside 0 to 1",
                    "give each label as 0 or 1, or as a probability");
  }
}

// Returns [samples or pixels, labels]. The second dimension of `tensor` counts the labels; [batch] is one label.
at::Tensor labels_last(const at::Tensor& tensor) {
  return tensor.dim() == 1 ? tensor.unsqueeze(1) : tensor.movedim(1, -1).flatten(0, -2);
}

}  // namespace
}  // namespace dtrain::worker

namespace dtrain::config {

worker::LossValues MeanAbsoluteDifference::evaluate(const worker::LossInput& input) const {
  return {at::l1_loss(input.output, worker::target_like_output(input, kWord)), {}};
}

void MeanAbsoluteDifference::check_target(const worker::LossInput&) const {}  // any number can be a target

worker::LossValues MeanSquaredError::evaluate(const worker::LossInput& input) const {
  return {at::mse_loss(input.output, worker::target_like_output(input, kWord)), {}};
}

void MeanSquaredError::check_target(const worker::LossInput&) const {}  // any number can be a target

worker::LossValues SmoothL1::evaluate(const worker::LossInput& input) const {
  const at::Tensor target = worker::target_like_output(input, kWord);
  return {at::smooth_l1_loss(input.output, target, at::Reduction::Mean, beta), {}};
}

void SmoothL1::check_target(const worker::LossInput&) const {}  // any number can be a target

worker::LossValues KlDivergence::evaluate(const worker::LossInput& input) const {
  const at::Tensor target = worker::target_like_output(input, kWord);
  const at::Tensor sum = at::kl_div(input.output, target, at::Reduction::Sum, log_target);
  return {sum / input.output.size(0), {}};
}

void KlDivergence::check_target(const worker::LossInput&) const {}  // any number can be a target

worker::LossValues BinaryCrossEntropy::evaluate(const worker::LossInput& input) const {
  const at::Tensor target = worker::target_like_output(input, kWord);
  worker::check_labels(input.host_target.defined() ? input.host_target : target);
  at::Tensor right;
  if (input.accuracy) right = input.output.detach().gt(0).eq(target.gt(0.5)).to(at::kDouble).mean();
  return {at::binary_cross_entropy_with_logits(input.output, target), right};
}

worker::ScoredTargets BinaryCrossEntropy::scored(const worker::LossInput& input) const {
  const at::Tensor target = worker::target_like_output(input, kWord).gt(0.5);
  return {worker::labels_last(input.output.detach()), worker::labels_last(target)};
}

void BinaryCrossEntropy::check_target(const worker::LossInput& input) const {
  worker::check_labels(input.host_target);
}

}  // namespace dtrain::config
