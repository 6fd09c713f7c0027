#include <ATen/ATen.h>

#include "dtrain/config/losses.h"
#include "worker/loss.h"

namespace dtrain::config {

worker::LossValues MeanSquaredError::evaluate(const worker::LossInput& input) const {
  const at::Tensor& output = input.output;
  at::Tensor target = input.target;
  // One number a sample may be [batch] on one side and [batch, 1] on the other; torch would broadcast that to a square.
  const auto one_column = [](const at::Tensor& t) { return t.dim() == 2 && t.size(1) == 1; };
  const bool same_numbers = (output.dim() == 1 && one_column(target)) || (target.dim() == 1 && one_column(output));
  if (same_numbers && output.size(0) == target.size(0)) target = target.reshape(output.sizes());
  if (output.sizes() != target.sizes()) worker::refuse_shapes(input, "mse needs an output of the target's shape");
  return {at::mse_loss(output, target.to(output.scalar_type())), {}};
}

void MeanSquaredError::check_target(const worker::LossInput&) const {}  // any number can be a target

}  // namespace dtrain::config
