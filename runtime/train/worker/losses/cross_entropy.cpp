#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "worker/loss.h"
#include "worker/script_file.h"

namespace dtrain::worker {
namespace {

void check_classes(const at::Tensor& target, std::int64_t classes) {
  const auto [least, most] = at::aminmax(target);
  for (const std::int64_t value : {least.item<std::int64_t>(), most.item<std::int64_t>()}) {
    if (value >= 0 && value < classes) continue;
    throw DataError("the target has class " + std::to_string(value) + ", the model's output " +
                        std::to_string(classes) + " classes (0 to " + std::to_string(classes - 1) + ")",
                    "give the model one output for each class, or correct the targets");
  }
}

LossValues cross_entropy(const LossInput& input) {
  at::Tensor output = input.output;
  at::Tensor target = input.target;
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw Error("loss: cross_entropy needs whole numbers as targets, these are " + describe(target),
                "give the class of each sample, or use loss: mse");
  }
  target = target.to(at::kLong);
  const bool sequences = input.sequences;
  const bool fits = sequences ? output.dim() == 3 && output.sizes().slice(0, 2) == target.sizes()
                              : output.dim() == 2 && target.dim() == 1 && output.size(0) == target.size(0);
  if (!fits) {
    refuse_shapes(
        {output, target},
        sequences ? "cross_entropy over tokens needs scores [batch, positions, classes] for targets [batch, positions]"
                  : "cross_entropy needs scores [batch, classes] for targets [batch]");
  }
  if (sequences) {
    output = output.flatten(0, 1);
    target = target.flatten();
  }
  check_classes(input.host_target.defined() ? input.host_target : target, output.size(1));
  return {at::cross_entropy_loss(output, target), output.detach().argmax(1).eq(target).to(at::kDouble).mean()};
}

}  // namespace
}  // namespace dtrain::worker

namespace dtrain::config {

worker::LossValues CrossEntropy::evaluate(const worker::LossInput& input) const {
  return worker::cross_entropy(input);
}

void CrossEntropy::check_target(const worker::LossInput& input) const {
  worker::check_classes(input.host_target, input.output.size(input.sequences ? 2 : 1));
}

}  // namespace dtrain::config
