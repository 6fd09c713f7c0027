// What a model's output is compared with: loss, accuracy and weight of one batch, and errors where output and target do
// not fit together. Plain functions of tensors; any thread may call them.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

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
  bool accuracy = true;            // whether it is computed, if the loss has it
  std::vector<at::Tensor> more{};  // in host memory: what tensors_of() the loss names
  // Whether the mean of this batch is not averaged with means of others, which may be of other numbers of targets: it
  // is all of an optimizer step, or it is evaluated.
  bool is_alone = true;
};

struct LossValues {
  at::Tensor loss;      // of one element: the mean over the batch; backward() starts there
  at::Tensor accuracy;  // of one element; undefined for a loss that has none
  // What the batch counts, if its targets do not all count the same: context.backward()'s weight.
  std::optional<double> weight{};
  std::optional<double> counted{};  // the number of targets that count, if not all do
  // Weighted by these numbers, where there are any.
  Metrics metrics() const;
};

// A batch as metrics see it: scores of classes and one target for each row, or scores of labels of which several may be
// true. Without a gradient; on the output's device.
struct ScoredTargets {
  at::Tensor scores;     // [targets, classes] or [targets, labels], floating point
  at::Tensor targets;    // int64 [targets], those that do not count are 0; or bool [targets, labels]
  at::Tensor counted{};  // bool [targets]: which targets count; undefined: all
  bool of_labels() const { return targets.dim() == 2; }
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

// Of the losses with which metrics can be computed; the others have none.
template <typename... Losses>
std::optional<ScoredTargets> scored_targets(const std::variant<Losses...>& loss, const LossInput& input) {
  return std::visit(
      [&](const auto& chosen) -> std::optional<ScoredTargets> {
        if constexpr (requires { chosen.scored(input); }) return chosen.scored(input);
        return std::nullopt;
      },
      loss);
}

// What evaluate_loss() would find wrong with the values of `host_target`, without looking at anything else but the
// output's shape: it may be a tensor without memory (at::kMeta). DataError as there.
template <typename... Losses>
void check_target(const std::variant<Losses...>& loss, const LossInput& input) {
  std::visit([&](const auto& chosen) { chosen.check_target(input); }, loss);
}

}  // namespace dtrain::worker
