// What a model's output is compared with: loss, accuracy and weight of one batch, and errors where output and target do
// not fit together. Plain functions of tensors; any thread may call them.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "dtrain/train/metrics.h"

namespace dtrain::worker {

// Of one batch.
struct LossInput {
  at::Tensor output;  // of forward(), floating point
  at::Tensor target;
  bool sequences = false;  // of data.format tokens: a target for each position of a sample
  // Where the other two are on a GPU: the target in host memory, which can be looked at without waiting for the GPU.
  at::Tensor host_target{};
};

struct LossValues {
  at::Tensor loss;      // of one element: the mean over the batch; backward() starts there
  at::Tensor accuracy;  // of one element; undefined for a loss that has none
  // What the batch counts, if its targets do not all count the same: context.backward()'s weight.
  std::optional<double> weight{};
  Metrics metrics() const;
};

// For the losses: Error naming both shapes.
[[noreturn]] void refuse_shapes(const LossInput& input, const std::string& remedy);

// The target in the output's shape and type: one number a sample may be [batch] on one side and [batch, 1] on the
// other. Error if the shapes differ otherwise. `loss`: its word.
at::Tensor target_like_output(const LossInput& input, const char* loss);

// Error for an output that is not floating point.
void check_output(const at::Tensor& output);

// `loss` is one of a list (dtrain/config/losses.h). Error where output and target do not fit together; DataError for a
// target that cannot be.
template <typename... Losses>
LossValues evaluate_loss(const std::variant<Losses...>& loss, const LossInput& input) {
  check_output(input.output);
  return std::visit([&](const auto& chosen) { return chosen.evaluate(input); }, loss);
}

// What evaluate_loss() would find wrong with the values of `host_target`, without looking at anything else but the
// output's shape: it may be a tensor without memory (at::kMeta). DataError as there.
template <typename... Losses>
void check_target(const std::variant<Losses...>& loss, const LossInput& input) {
  std::visit([&](const auto& chosen) { chosen.check_target(input); }, loss);
}

}  // namespace dtrain::worker
