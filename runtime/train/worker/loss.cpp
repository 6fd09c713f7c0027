#include "worker/loss.h"

#include <cmath>
#include <memory>

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

void check_class_range(const at::Tensor& targets, std::int64_t classes) {
  if (targets.numel() == 0) return;
  const auto [least, most] = at::aminmax(targets);
  for (const std::int64_t value : {least.item<std::int64_t>(), most.item<std::int64_t>()}) {
    if (value >= 0 && value < classes) continue;
    throw DataError("the target has class " + std::to_string(value) + ", the model's output " +
                        std::to_string(classes) + " classes (0 to " + std::to_string(classes - 1) + ")",
                    "give the model one output for each class, or correct the targets");
  }
}

void check_output(const at::Tensor& output) {
  if (output.is_floating_point()) return;
  throw Error("the model's output is " + describe(output) + ": a loss needs floating-point numbers",
              "let forward() return scores, not classes");
}

namespace {

// A sum over the targets that count, divided by their number.
class MeanOverTargets : public SummedMetric {
 public:
  // `values`: one for each target. Values of targets that do not count are left out.
  void add_values(const at::Tensor& values, const at::Tensor& counted) {
    if (!counted.defined()) {
      const at::Tensor sum = values.sum(at::kDouble);
      return add(at::stack({sum, at::full_like(sum, static_cast<double>(values.numel()))}));
    }
    const at::Tensor zero = at::zeros({}, values.options());
    add(at::stack({at::where(counted, values, zero).sum(at::kDouble), counted.sum(at::kDouble)}));
  }
  double compute(const at::Tensor& sums) override { return sums[0].item<double>() / sums[1].item<double>(); }
};

class Perplexity final : public MeanOverTargets {
 public:
  double compute(const at::Tensor& sums) override { return std::exp(MeanOverTargets::compute(sums)); }
};

// Returns 1 for each target that is among the k classes with the largest scores, otherwise 0.
at::Tensor is_among_best(const ScoredTargets& batch, std::int64_t k) {
  return std::get<1>(batch.scores.topk(k, 1)).eq(batch.targets.unsqueeze(1)).any(1).to(at::kFloat);
}

at::Tensor cross_entropies(const ScoredTargets& batch) {
  const bool is_double = batch.scores.scalar_type() == at::kDouble;
  return at::cross_entropy_loss(is_double ? batch.scores : batch.scores.to(at::kFloat), batch.targets, {},
                                at::Reduction::None);
}

void add_to_counts(ClassMetric& counts, const ScoredTargets& batch) {
  if (batch.of_labels()) return counts.add_labels(batch.scores.gt(0), batch.targets);
  counts.add_classes(batch.scores.argmax(1), batch.targets, batch.scores.size(1), batch.counted);
}

// Adds the scores of one label, or the differences between the scores of class 1 and class 0.
void add_to_auc(Auc& auc, const ScoredTargets& batch) {
  if (batch.of_labels()) return auc.add(batch.scores, batch.targets);
  const at::Tensor scores = batch.scores.to(at::kDouble);
  const at::Tensor more = scores.select(1, 1) - scores.select(1, 0);
  if (!batch.counted.defined()) return auc.add(more, batch.targets);
  auc.add(more.masked_select(batch.counted), batch.targets.masked_select(batch.counted));
}

template <class Metric, class Add>
ModelMetric with(std::shared_ptr<Metric> metric, Add add) {
  return {metric, [metric, add](const ScoredTargets& batch) { add(*metric, batch); }};
}

}  // namespace

ModelMetric make_metric(const config::Metric& metric) {
  using config::MetricKind;
  switch (metric.kind) {
    case MetricKind::kAccuracy:
      break;
    case MetricKind::kTopAccuracy:
      return with(std::make_shared<MeanOverTargets>(), [k = metric.k](MeanOverTargets& mean, const auto& batch) {
        mean.add_values(is_among_best(batch, k), batch.counted);
      });
    case MetricKind::kPerplexity:
      return with(std::make_shared<Perplexity>(),
                  [](Perplexity& mean, const auto& batch) { mean.add_values(cross_entropies(batch), batch.counted); });
    case MetricKind::kF1:
      return with(std::make_shared<F1>(), add_to_counts);
    case MetricKind::kIou:
      return with(std::make_shared<MeanIou>(), add_to_counts);
    case MetricKind::kAuc:
      return with(std::make_shared<Auc>(), add_to_auc);
  }
  throw Error("there is no metric to add for '" + metric.word + "'");
}

void check_metric(const config::Metric& metric, const ScoredTargets& batch) {
  const std::int64_t columns = batch.scores.size(1);
  const std::string has =
      ", the model's output has " + std::to_string(columns) + (batch.of_labels() ? " labels" : " classes");
  if (metric.kind == config::MetricKind::kTopAccuracy && metric.k > columns) {
    throw Error("metrics: " + metric.word + " needs at least " + std::to_string(metric.k) + " classes" + has,
                "remove it, or give it a smaller number");
  }
  if (metric.kind == config::MetricKind::kAuc && columns != (batch.of_labels() ? 1 : 2)) {
    throw Error("metrics: auc needs two classes, or one label" + has, "remove it from metrics; f1 is for any number");
  }
}

}  // namespace dtrain::worker
