#include "worker/loss.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "worker/script_file.h"

namespace dtrain::worker {

Metrics LossValues::metrics() const {
  const auto over = [](const at::Tensor& value, const std::optional<double>& items) {
    return items ? MetricValue(value).mean_over(*items) : MetricValue(value);
  };
  Metrics result{{"loss", over(loss, weight ? weight : counted)}};
  if (accuracy.defined()) result.emplace("accuracy", over(accuracy, counted));
  return result;
}

void refuse_shapes(const LossInput& input, const std::string& remedy) {
  throw Error("the model's output " + describe(input.output) + " does not fit the target " + describe(input.target),
              remedy);
}

at::Tensor target_like_output(const LossInput& input, const char* loss) {
  const at::Tensor& output = input.output;
  at::Tensor target = input.target;
  // torch would broadcast [batch] and [batch, 1] to a square.
  const auto one_column = [](const at::Tensor& t) { return t.dim() == 2 && t.size(1) == 1; };
  const bool same_numbers = (output.dim() == 1 && one_column(target)) || (target.dim() == 1 && one_column(output));
  if (same_numbers && output.size(0) == target.size(0)) target = target.reshape(output.sizes());
  if (output.sizes() != target.sizes())
    refuse_shapes(input, std::string(loss) + " needs an output of the target's shape");
  return target.to(output.scalar_type());
}

void check_output(const at::Tensor& output) {
  if (output.is_floating_point()) return;
  throw Error("the model's output is " + describe(output) + ": a loss needs floating-point numbers",
              "let forward() return scores, not classes");
}

}  // namespace dtrain::worker
