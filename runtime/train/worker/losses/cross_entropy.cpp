#include <algorithm>
#include <atomic>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "dtrain/base/error.h"
#include "dtrain/config/losses.h"
#include "numerics/kernels.h"
#include "numerics/linear_cross_entropy.h"
#include "numerics/parallel.h"
#include "worker/loss.h"
#include "worker/script_file.h"

namespace dtrain::worker {
namespace {

constexpr std::int64_t kAccuracyGrain = 1 << 16;  // number of scores for which a thread pays off
constexpr std::int64_t kIgnored = -100;           // torch's default

using Settings = config::CrossEntropy;

bool is_last(const Settings& settings, bool sequences) {
  if (settings.class_dimension == config::ClassDimension::kAutomatic) return sequences;
  return settings.class_dimension == config::ClassDimension::kLast;
}

std::int64_t ignored_by(const Settings& settings) {
  return settings.ignore_index.value_or(kIgnored);
}

// Returns the targets that count. `target`: in host memory.
at::Tensor counted(const Settings& settings, const at::Tensor& target) {
  return target.masked_select(target.ne(ignored_by(settings)));
}

// True if there are targets that torch ignores by default and the experiment sets no ignore_index.
bool ignores_by_default(const Settings& settings, const at::Tensor& host_target) {
  return !settings.ignore_index && host_target.numel() > 0 && host_target.min().item<std::int64_t>() == kIgnored;
}

// Throws if class weights or targets do not fit the classes. Returns ignores_by_default().
bool check_classes(const Settings& settings, const LossInput& input, const at::Tensor& host_target,
                   std::int64_t classes) {
  if (const auto given = settings.class_weights.size(); given > 0 && static_cast<std::int64_t>(given) != classes) {
    throw ConfigError("loss.class_weights has " + std::to_string(given) + " numbers, the model's output " +
                          std::to_string(classes) + " classes",
                      "give one number for each class");
  }
  at::Tensor target = settings.ignore_index ? counted(settings, host_target) : host_target;
  const bool ignores = ignores_by_default(settings, target);
  if (ignores && !input.is_alone && !settings.weighs_batches()) {
    throw ConfigError(
        "the target has -100, which torch leaves out of the mean; the means of several ranks or batches "
        "would then count the same, however many targets each has left",
        "set ignore_index: -100 in loss, with which each target that counts has the same part in a step");
  }
  if (ignores) target = counted(settings, target);
  check_class_range(target, classes);
  return ignores;
}

// Returns the divisor of the mean. `target`: in host memory.
double weight_of(const Settings& settings, const at::Tensor& target) {
  const at::Tensor chosen = counted(settings, target).flatten();
  if (settings.class_weights.empty()) return static_cast<double>(chosen.numel());
  const at::Tensor weights = at::tensor(settings.class_weights, at::kDouble);
  return weights.index_select(0, chosen.to(at::kLong)).sum().item<double>();
}

// True if count_first_maxima() takes these contiguous scores.
bool has_maximum_kernel(const at::Tensor& scores) {
  return scores.is_cpu() && (scores.scalar_type() == at::kFloat || scores.scalar_type() == at::kBFloat16);
}

// Returns the number of rows whose first largest score is the score of their target.
std::int64_t right_by_kernel(const at::Tensor& scores, const at::Tensor& target) {
  const at::Tensor targets = target.contiguous();
  const std::int64_t classes = scores.size(1);
  std::atomic<std::int64_t> right{0};
  train::parallel_for(scores.size(0), std::max<std::int64_t>(1, kAccuracyGrain / classes), [&](auto begin, auto end) {
    const auto count = [&]<class Score>(const Score* first) {
      right +=
          train::kernels::count_first_maxima(first + begin * classes, targets.const_data_ptr<std::int64_t>() + begin,
                                             static_cast<std::size_t>(end - begin), static_cast<std::size_t>(classes));
    };
    if (scores.scalar_type() == at::kFloat) {
      count(scores.const_data_ptr<float>());
    } else {
      count(reinterpret_cast<const train::kernels::Bfloat16*>(scores.const_data_ptr<at::BFloat16>()));
    }
  });
  return right;
}

// Returns the share of samples whose first largest score is the score of their target; float64, one element.
at::Tensor accuracy_of(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor scores = output.detach().contiguous();
  if (!has_maximum_kernel(scores)) return scores.argmax(1).eq(target).to(at::kDouble).mean();
  const auto right = static_cast<double>(right_by_kernel(scores, target));
  return at::scalar_tensor(right / static_cast<double>(scores.size(0)), at::kDouble);
}

// Returns the accuracy over the targets that count; 0 if none does.
at::Tensor accuracy_of_counted(const at::Tensor& output, const at::Tensor& target, std::int64_t ignore_index) {
  const at::Tensor counts = target.ne(ignore_index);
  const at::Tensor right = output.detach().argmax(1).eq(target).logical_and(counts);
  return right.sum().to(at::kDouble) / counts.sum().clamp_min(1);
}

// On a GPU ignored targets are always expected: a CUDA graph may repeat the step for batches that have some.
at::Tensor accuracy_of_targets(const Settings& settings, const at::Tensor& output, const at::Tensor& target,
                               bool ignores) {
  if (settings.ignore_index || ignores || !target.is_cpu())
    return accuracy_of_counted(output, target, ignored_by(settings));
  if (output.dim() == 2) return accuracy_of(output, target);
  return output.detach().argmax(1).eq(target).to(at::kDouble).mean();
}

// The mean without ignore_index. On a GPU a training step decides nothing by its targets: a graph would repeat it.
LossValues plain_mean(const Settings& settings, const at::Tensor& output, const at::Tensor& target,
                      const at::Tensor& host_target, bool ignores) {
  LossValues values;
  auto reduction = at::Reduction::Mean;
  if (ignores && (output.is_cpu() || !output.requires_grad())) {
    const auto counts = static_cast<double>(counted(settings, host_target).numel());
    if (counts == 0) reduction = at::Reduction::Sum;
    values.counted = counts / static_cast<double>(host_target.numel());
  }
  values.loss = at::cross_entropy_loss(output, target, {}, reduction, kIgnored, settings.label_smoothing);
  return values;
}

// Returns the mean for scores [batch, classes] or [batch, classes, ...] over the targets that count; 0 if none does.
LossValues cross_entropy(const Settings& settings, at::Tensor output, const at::Tensor& target,
                         const at::Tensor& host_target, bool ignores, const LossInput& input) {
  at::Tensor accuracy;
  if (input.accuracy) accuracy = accuracy_of_targets(settings, output, target, ignores);
  if (!settings.weighs_batches()) {
    LossValues values = plain_mean(settings, output, target, host_target, ignores);
    values.accuracy = accuracy;
    if (values.counted) *values.counted *= static_cast<double>(input.target.size(0));  // from share to samples
    return values;
  }
  const double weight = weight_of(settings, host_target);
  const auto counts = static_cast<double>(counted(settings, host_target).numel());
  at::Tensor class_weights;
  if (!settings.class_weights.empty()) {
    if (output.scalar_type() != at::kDouble) output = output.to(at::kFloat);
    class_weights = at::tensor(settings.class_weights, output.options().requires_grad(false));
  }
  const at::Tensor loss =
      at::cross_entropy_loss(output, target, class_weights, weight > 0 ? at::Reduction::Mean : at::Reduction::Sum,
                             ignored_by(settings), settings.label_smoothing);
  return {loss, accuracy, weight, counts};
}

// True for the targets of mixup and cutmix: [batch, classes].
bool are_probabilities(const LossInput& input) {
  return input.target.is_floating_point() && input.target.dim() == 2 && !input.sequences;
}

LossValues with_probabilities(const Settings& settings, const at::Tensor& output, const at::Tensor& target,
                              bool with_accuracy) {
  if (output.dim() != 2 || output.sizes() != target.sizes()) {
    refuse_shapes({output, target},
                  "cross_entropy needs scores [batch, classes] of the same shape for targets that are "
                  "probabilities [batch, classes]");
  }
  if (settings.weighs_batches()) {
    throw ConfigError("loss: ignore_index and class_weights have no meaning for targets that are probabilities",
                      "remove them, or the transforms mixup and cutmix");
  }
  at::Tensor accuracy;
  if (with_accuracy) accuracy = accuracy_of(output, target.argmax(1));
  return {at::cross_entropy_loss(output, target.to(output.scalar_type()), {}, at::Reduction::Mean, kIgnored,
                                 settings.label_smoothing),
          accuracy};
}

LossValues evaluate_cross_entropy(const Settings& settings, const LossInput& input) {
  at::Tensor output = input.output;
  at::Tensor target = input.target;
  if (are_probabilities(input)) return with_probabilities(settings, output, target, input.accuracy);
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw Error("loss: cross_entropy needs whole numbers as targets, these are " + describe(target),
                "give the class of each sample, or use loss: mse");
  }
  target = target.to(at::kLong);
  const bool last = is_last(settings, input.sequences);
  const std::int64_t dimensions = output.dim();
  bool fits = dimensions >= 2 && target.dim() == dimensions - 1;
  if (fits && last) fits = output.sizes().slice(0, target.dim()) == target.sizes();
  if (fits && !last) fits = output.size(0) == target.size(0) && output.sizes().slice(2) == target.sizes().slice(1);
  if (!fits) {
    const char* needs =
        "cross_entropy needs scores [batch, classes] for targets [batch], and [batch, classes, ...] for "
        "[batch, ...]; with class_dimension: last, [batch, ..., classes]";
    if (input.sequences && last)
      needs = "cross_entropy over tokens needs scores [batch, positions, classes] for targets [batch, positions]";
    refuse_shapes({output, target}, needs);
  }
  if (last) {
    output = output.flatten(0, -2);
    target = target.flatten();
  }
  const at::Tensor& host_target = input.host_target.defined() ? input.host_target : target;
  const bool ignores = check_classes(settings, input, host_target, output.size(1));
  return cross_entropy(settings, output, target, host_target, ignores, input);
}

// Counts the rows of chunks whose largest score is that of their target.
class ChunkedAccuracy {
 public:
  ChunkedAccuracy(const at::Tensor& target, std::optional<std::int64_t> ignored)
      : ignored_(ignored), right_(at::zeros({}, target.options())) {}

  void add(const at::Tensor& scores, const at::Tensor& target) {
    if (!ignored_ && has_maximum_kernel(scores)) {
      right_.add_(right_by_kernel(scores, target));
      return;
    }
    const at::Tensor right = scores.argmax(1).eq(target);
    right_.add_((ignored_ ? right.logical_and(target.ne(*ignored_)) : right).sum());
  }

  // Returns the accuracy over the targets that count; 0 if none does.
  at::Tensor of(const at::Tensor& target) const {
    if (!ignored_) return right_.to(at::kDouble) / target.numel();
    return right_.to(at::kDouble) / target.ne(*ignored_).sum().clamp_min(1);
  }

 private:
  const std::optional<std::int64_t> ignored_;
  at::Tensor right_;
};

at::ScalarType type_of_scores(const at::Tensor& hidden) {
  const c10::DeviceType device = hidden.device().type();
  const bool is_cast = at::autocast::is_autocast_enabled(device) && hidden.scalar_type() != at::kDouble;
  return is_cast ? at::autocast::get_autocast_dtype(device) : hidden.scalar_type();
}

double bytes_of_score(const at::Tensor& hidden) {
  return static_cast<double>(c10::elementSize(type_of_scores(hidden)));
}

}  // namespace

double bytes_of_scores(const at::Tensor& hidden, const LastLayer& layer) {
  const double rows = static_cast<double>(hidden.numel()) / static_cast<double>(layer.weight.size(1));
  return rows * static_cast<double>(layer.classes()) * bytes_of_score(hidden);
}

// Each chunk adds to the gradient of the weight. On a GPU that takes about as long as the scores of `features` rows.
double least_bytes_in_chunks(const at::Tensor& hidden, const LastLayer& layer) {
  constexpr double kUsual = 64 << 20, kTimesFeatures = 4;
  if (hidden.is_cpu()) return kUsual;
  return std::max(kUsual, kTimesFeatures * static_cast<double>(layer.weight.numel()) * bytes_of_score(hidden));
}

// The gradients of a chunk's scores are made before the loss is scaled, as float16 needs it.
bool fits_chunks(const Settings& loss, const LossInput& input) {
  const at::Tensor& hidden = input.output;
  const at::Tensor& target = input.target;
  const bool has_rows = hidden.dim() == 2 || (hidden.dim() > 2 && is_last(loss, input.sequences));
  return loss.class_weights.empty() && has_rows && hidden.is_floating_point() && target.numel() > 0 &&
         type_of_scores(hidden) != at::kHalf && at::isIntegralType(target.scalar_type(), /*includeBool=*/false) &&
         hidden.sizes().slice(0, hidden.dim() - 1) == target.sizes();
}

// What counts is decided as in cross_entropy() and plain_mean(), and for the same reasons.
LossValues evaluate_in_chunks(const Settings& loss, const LossInput& input, const LastLayer& layer) {
  const at::Tensor target = input.target.to(at::kLong).flatten();
  const at::Tensor& host_target = input.host_target.defined() ? input.host_target : target;
  const bool ignores = check_classes(loss, input, host_target, layer.classes());
  LossValues values;
  if (loss.weighs_batches()) {
    values.weight = values.counted = weight_of(loss, host_target);
  } else if (ignores && (target.is_cpu() || !at::GradMode::is_enabled())) {
    const auto share = static_cast<double>(counted(loss, host_target).numel()) / static_cast<double>(target.numel());
    values.counted = share * static_cast<double>(input.target.size(0));
  }
  const bool may_ignore = loss.ignore_index || ignores || !target.is_cpu();
  ChunkedAccuracy accuracy(target, may_ignore ? std::optional(ignored_by(loss)) : std::nullopt);
  train::SeeScores see;
  if (input.accuracy) see = [&](const at::Tensor& scores, const at::Tensor& of) { accuracy.add(scores, of); };
  values.loss = train::linear_cross_entropy(
      input.output.flatten(0, -2), layer.weight, target,
      {.linear_bias = layer.bias,
       .reduction = values.counted == 0.0 ? at::Reduction::Sum : at::Reduction::Mean,
       .ignore_index = ignored_by(loss),
       .label_smoothing = loss.label_smoothing,
       .chunk_bytes = static_cast<std::int64_t>(least_bytes_in_chunks(input.output, layer))},
      see);
  if (input.accuracy) values.accuracy = accuracy.of(target);
  return values;
}

}  // namespace dtrain::worker

namespace dtrain::config {

worker::LossValues CrossEntropy::evaluate(const worker::LossInput& input) const {
  return worker::evaluate_cross_entropy(*this, input);
}

worker::ScoredTargets CrossEntropy::scored(const worker::LossInput& input) const {
  at::Tensor scores = input.output.detach();
  if (!worker::is_last(*this, input.sequences)) scores = scores.movedim(1, -1);
  scores = scores.flatten(0, -2);
  if (worker::are_probabilities(input)) return {scores, input.target.argmax(1)};
  const at::Tensor targets = input.target.to(at::kLong).flatten();
  const at::Tensor host_target = input.host_target.defined() ? input.host_target : input.target;
  if (!ignore_index && !worker::ignores_by_default(*this, host_target)) return {scores, targets};
  const at::Tensor counted = targets.ne(worker::ignored_by(*this));
  return {scores, targets.masked_fill(counted.logical_not(), 0), counted};
}

void CrossEntropy::check_target(const worker::LossInput& input) const {
  if (input.host_target.is_floating_point()) return;  // evaluate() compares the shapes
  const std::int64_t classes = worker::is_last(*this, input.sequences) ? input.output.size(-1) : input.output.size(1);
  worker::check_classes(*this, input, input.host_target, classes);
}

}  // namespace dtrain::config
