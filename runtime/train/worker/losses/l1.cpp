#include <ATen/ATen.h>

#include "dtrain/config/losses.h"
#include "worker/loss.h"

namespace dtrain::config {

worker::LossValues MeanAbsoluteDifference::evaluate(const worker::LossInput& input) const {
  return {at::l1_loss(input.output, worker::target_like_output(input, kWord)), {}};
}

void MeanAbsoluteDifference::check_target(const worker::LossInput&) const {}  // any number can be a target

}  // namespace dtrain::config
