// Computes loss, accuracy, weight and metrics of a batch from a model's output and the target. Errors name outputs and
// targets that do not fit. Plain functions of tensors; any thread may call them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/config/model_job.h"
#include "dtrain/train/metrics.h"
#include "dtrain/train/trial.h"

namespace dtrain::worker {

// The input of a loss for one batch.
struct LossInput {
  at::Tensor output;  // output of forward(), floating point
  at::Tensor target;
  bool sequences = false;  // true for data.format tokens: each position of a sample has a target
  // The target in host memory if output and target are on a GPU: checks read it without waiting for the GPU.
  at::Tensor host_target{};
  bool accuracy = true;            // compute the accuracy, if the loss has one
  std::vector<at::Tensor> more{};  // the tensors that tensors_of() names, in host memory
  // True if the batch's mean is not averaged with means of other batches, which may have other numbers of targets: the
  // batch is a whole optimizer step, or it is evaluated.
  bool is_alone = true;
};

struct LossValues {
  at::Tensor loss;      // one element: the mean over the batch, on which backward() is called
  at::Tensor accuracy;  // one element; undefined: the loss has no accuracy
  // The batch's weight for context.backward(), if its targets have different weights.
  std::optional<double> weight{};
  std::optional<double> counted{};  // number of targets that count, if not all do
  // Returns loss and accuracy, weighted by `weight` and `counted` where set.
  Metrics metrics() const;
};

// The input of metrics for one batch: scores of classes and one target for each row, or scores of labels, of which
// several may be true. Without gradients; on the output's device.
struct ScoredTargets {
  at::Tensor scores;     // [targets, classes] or [targets, labels], floating point
  at::Tensor targets;    // int64 [targets], 0 where a target does not count; or bool [targets, labels]
  at::Tensor counted{};  // bool [targets]: true where a target counts; undefined: all count
  bool of_labels() const { return targets.dim() == 2; }
};

// Throws an Error of a loss that names both shapes.
[[noreturn]] void refuse_shapes(const LossInput& input, const std::string& remedy);

// Returns the target in the output's shape and type. With one number per sample, one side may be [batch] and the other
// [batch, 1]. Error if the shapes differ otherwise. `loss`: the loss's word.
at::Tensor target_like_output(const LossInput& input, const char* loss);

// DataError unless all targets, which are in host memory, are classes from 0 to `classes` - 1.
void check_class_range(const at::Tensor& targets, std::int64_t classes);

// Throws an Error if the output is not floating point.
void check_output(const at::Tensor& output);

// Computes one of the losses in dtrain/config/losses.h. Error if output and target do not fit together; DataError for
// an invalid target.
template <typename... Losses>
LossValues evaluate_loss(const std::variant<Losses...>& loss, const LossInput& input) {
  check_output(input.output);
  return std::visit([&](const auto& chosen) { return chosen.evaluate(input); }, loss);
}

// A linear layer that makes the scores of classes, and that the loss may compute itself.
struct LastLayer {
  std::string name;         // of its weight: "head.weight"
  at::Tensor weight, bias;  // [classes, features], [classes]; an undefined bias: none
  std::int64_t classes() const { return weight.size(0); }
};

// Fewer classes are never computed in chunks.
inline constexpr std::int64_t kLeastClassesInChunks = 4096;

// Returns the bytes that the scores of a batch take, which `layer` makes of `hidden`.
double bytes_of_scores(const at::Tensor& hidden, const LastLayer& layer);

// Returns the bytes of scores from which on chunks are worth it for these hidden states; a chunk takes at most as many.
double least_bytes_in_chunks(const at::Tensor& hidden, const LastLayer& layer);

// True if evaluate_in_chunks() may compute the loss: each row of the hidden states has one class as its target, classes
// have no weights, and the scores are not float16.
bool fits_chunks(const config::CrossEntropy& loss, const LossInput& input);

// Returns what evaluate_loss() returns of the scores, up to rounding, with linear_cross_entropy(): the scores never lie
// in memory at once. `input.output`: the hidden states, which `layer` would turn into the scores. Errors as there.
LossValues evaluate_in_chunks(const config::CrossEntropy& loss, const LossInput& input, const LastLayer& layer);

// Returns the input of metrics; empty: metrics cannot be computed with this loss.
template <typename... Losses>
std::optional<ScoredTargets> scored_targets(const std::variant<Losses...>& loss, const LossInput& input) {
  return std::visit(
      [&](const auto& chosen) -> std::optional<ScoredTargets> {
        if constexpr (requires { chosen.scored(input); }) return chosen.scored(input);
        return std::nullopt;
      },
      loss);
}

// Makes the checks of evaluate_loss() on the values of `host_target`. Reads only the shape of the output, which may be
// a tensor without memory (at::kMeta). DataError as in evaluate_loss().
template <typename... Losses>
void check_target(const std::variant<Losses...>& loss, const LossInput& input) {
  std::visit([&](const auto& chosen) { chosen.check_target(input); }, loss);
}

// One of the `metrics` of a `model:` experiment, other than accuracy, which is a part of LossValues.
struct ModelMetric {
  AddedMetric metric;                             // for TrialContext::add_metric()
  std::function<void(const ScoredTargets&)> add;  // adds a batch to the metric
};

// `metric`: any except accuracy.
ModelMetric make_metric(const config::Metric& metric);

// Error if the metric cannot be computed for this number of classes or labels.
void check_metric(const config::Metric& metric, const ScoredTargets& batch);

}  // namespace dtrain::worker
