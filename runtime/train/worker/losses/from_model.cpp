#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "worker/loss.h"
#include "worker/script_file.h"

namespace dtrain::config {

worker::LossValues FromModel::evaluate(const worker::LossInput& input) const {
  if (input.output.numel() != 1) {
    throw Error("the model's output " + worker::describe(input.output) + " is no loss: it is not one number",
                "let forward() return the mean over the batch, or choose the loss among its outputs with loss.output");
  }
  return {input.output.reshape({}), {}};
}

void FromModel::check_target(const worker::LossInput&) const {}  // the model decides which targets are valid

}  // namespace dtrain::config
