#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "worker/loss.h"
#include "worker/script_file.h"

namespace dtrain::worker {
namespace {

bool is_integral(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

// Returns one length per sample, from `least` to `most`. `what`, for errors: "the model's output has 12 time steps".
at::Tensor lengths(const at::Tensor& given, const std::string& name, std::int64_t batch, std::int64_t least,
                   std::int64_t most, const std::string& what) {
  if (!is_integral(given) || given.dim() != 1 || given.size(0) != batch) {
    throw Error("loss ctc: the lengths '" + name + "' are " + describe(given) + " for a batch of " +
                    std::to_string(batch) + " samples",
                "give one whole number for each sample");
  }
  const at::Tensor all = given.to(at::kLong);
  const auto [smallest, greatest] = at::aminmax(all);
  for (const std::int64_t value : {smallest.item<std::int64_t>(), greatest.item<std::int64_t>()}) {
    if (value >= least && value <= most) continue;
    throw DataError("loss ctc: '" + name + "' has the length " + std::to_string(value) + ", but " + what,
                    "give lengths from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return all;
}

// Labels beyond a target's length are not checked.
void check_labels(const config::Ctc& settings, const at::Tensor& target, const at::Tensor& target_lengths,
                  std::int64_t classes) {
  if (settings.blank >= classes) {
    throw ConfigError("loss.blank is " + std::to_string(settings.blank) + ", the model's output has " +
                          std::to_string(classes) + " classes",
                      "give a class from 0 to " + std::to_string(classes - 1));
  }
  const at::Tensor inside = at::arange(target.size(1), at::kLong).unsqueeze(0).lt(target_lengths.unsqueeze(1));
  const at::Tensor labels = target.masked_select(inside);
  check_class_range(labels, classes);
  if (!labels.eq(settings.blank).any().item<bool>()) return;
  throw DataError("the target has class " + std::to_string(settings.blank) + ", which is the blank of loss ctc",
                  "leave blanks out of the targets, or choose another class with loss.blank");
}

}  // namespace
}  // namespace dtrain::worker

namespace dtrain::config {

worker::LossValues Ctc::evaluate(const worker::LossInput& input) const {
  const bool fits = input.output.dim() == 3 && input.target.dim() == 2 && worker::is_integral(input.target) &&
                    input.output.size(batch_first ? 0 : 1) == input.target.size(0);
  if (!fits) {
    worker::refuse_shapes(
        input,
        "ctc needs logarithms of probabilities [time steps, batch, classes] for whole numbers [batch, "
        "labels]; with batch_first, [batch, time steps, classes]");
  }
  const at::Tensor output = batch_first ? input.output.transpose(0, 1) : input.output;
  const at::Tensor target = input.target.to(at::kLong);
  const std::int64_t batch = output.size(1);
  const at::Tensor steps = worker::lengths(input.more.at(0), input_lengths, batch, 1, output.size(0),
                                           "the model's output has " + std::to_string(output.size(0)) + " time steps");
  const at::Tensor labels = worker::lengths(input.more.at(1), target_lengths, batch, 0, target.size(1),
                                            "the target has " + std::to_string(target.size(1)) + " labels");
  const at::Tensor host_target = input.host_target.defined() ? input.host_target.to(at::kLong) : target;
  worker::check_labels(*this, host_target, labels, output.size(2));
  const at::Tensor scores = output.scalar_type() == at::kDouble ? output : output.to(at::kFloat);
  return {at::ctc_loss(scores, target, steps, labels, blank, at::Reduction::Mean, zero_infinity), {}};
}

void Ctc::check_target(const worker::LossInput&) const {}  // evaluate() checks the target; steps are not replayed

}  // namespace dtrain::config
