#include "loss.h"

#include "dtrain/base/error.h"
#include "script_file.h"

namespace dtrain::worker {

Metrics LossValues::metrics() const {
  Metrics result{{"loss", loss}};
  if (accuracy.defined()) result.emplace("accuracy", accuracy);
  return result;
}

void refuse_shapes(const LossInput& input, const std::string& remedy) {
  throw Error("the model's output " + describe(input.output) + " does not fit the target " + describe(input.target),
              remedy);
}

void check_output(const at::Tensor& output) {
  if (output.is_floating_point()) return;
  throw Error("the model's output is " + describe(output) + ": a loss needs floating-point numbers",
              "let forward() return scores, not classes");
}

}  // namespace dtrain::worker
