#include "objective.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "script_file.h"

namespace dtrain::worker {

namespace {

[[noreturn]] void no_fit(const at::Tensor& output, const at::Tensor& target, const std::string& remedy) {
  throw Error("the model's output " + describe(output) + " does not fit the target " + describe(target), remedy);
}

void check_classes(const at::Tensor& target, std::int64_t classes) {
  const auto [least, most] = at::aminmax(target);
  for (const std::int64_t value : {least.item<std::int64_t>(), most.item<std::int64_t>()}) {
    if (value >= 0 && value < classes) continue;
    throw DataError("the target has class " + std::to_string(value) + ", the model's output " +
                        std::to_string(classes) + " classes (0 to " + std::to_string(classes - 1) + ")",
                    "give the model one output for each class, or correct the targets");
  }
}

}  // namespace

Metrics Objective::Result::metrics() const {
  Metrics result{{"loss", loss}};
  if (accuracy.defined()) result.emplace("accuracy", accuracy);
  return result;
}

Objective::Result Objective::evaluate(const at::Tensor& output, const at::Tensor& target) const {
  if (!output.is_floating_point()) {
    throw Error("the model's output is " + describe(output) + ": a loss needs floating-point numbers",
                "let forward() return scores, not classes");
  }
  return loss_ == config::Loss::kCrossEntropy ? cross_entropy(output, target) : mse(output, target);
}

Objective::Result Objective::cross_entropy(at::Tensor output, at::Tensor target) const {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw Error("loss: cross_entropy needs whole numbers as targets, these are " + describe(target),
                "give the class of each sample, or use loss: mse");
  }
  target = target.to(at::kLong);
  const bool fits = sequences_ ? output.dim() == 3 && output.sizes().slice(0, 2) == target.sizes()
                               : output.dim() == 2 && target.dim() == 1 && output.size(0) == target.size(0);
  if (!fits) {
    no_fit(output, target,
           sequences_
               ? "cross_entropy over tokens needs scores [batch, positions, classes] for targets [batch, positions]"
               : "cross_entropy needs scores [batch, classes] for targets [batch]");
  }
  if (sequences_) {
    output = output.flatten(0, 1);
    target = target.flatten();
  }
  check_classes(target, output.size(1));
  return {at::cross_entropy_loss(output, target), output.detach().argmax(1).eq(target).to(at::kDouble).mean()};
}

Objective::Result Objective::mse(const at::Tensor& output, at::Tensor target) const {
  // One number a sample may be [batch] on one side and [batch, 1] on the other; torch would broadcast that to a square.
  const auto one_column = [](const at::Tensor& t) { return t.dim() == 2 && t.size(1) == 1; };
  const bool same_numbers = (output.dim() == 1 && one_column(target)) || (target.dim() == 1 && one_column(output));
  if (same_numbers && output.size(0) == target.size(0)) target = target.reshape(output.sizes());
  if (output.sizes() != target.sizes()) no_fit(output, target, "mse needs an output of the target's shape");
  return {at::mse_loss(output, target.to(output.scalar_type())), {}};
}

}  // namespace dtrain::worker
