#include <ATen/ATen.h>

#include "dtrain/config/losses.h"
#include "worker/loss.h"

namespace dtrain::config {

worker::LossValues SmoothL1::evaluate(const worker::LossInput& input) const {
  const at::Tensor target = worker::target_like_output(input, kWord);
  return {at::smooth_l1_loss(input.output, target, at::Reduction::Mean, beta), {}};
}

void SmoothL1::check_target(const worker::LossInput&) const {}  // any number can be a target

}  // namespace dtrain::config
