// `metrics` of a `model:` experiment, which validation computes beside the loss. Plain values;
// runtime/train/worker/metrics.h computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/losses.h"

namespace dtrain::config {

enum class MetricKind { kAccuracy, kTopAccuracy, kPerplexity, kF1, kIou, kAuc };

struct Metric {
  MetricKind kind = MetricKind::kAccuracy;
  std::string word;    // the name in the experiment and in metrics.jsonl
  std::int64_t k = 0;  // top_K_accuracy: K, at least 2
  bool operator==(const Metric&) const = default;
};

// Empty: there is no such metric.
std::optional<Metric> metric_named(const std::string& word);
// Returns the words of the losses from whose outputs the metric can be computed.
std::vector<std::string> losses_with(MetricKind kind);
// Returns the metrics of an experiment without `metrics`: accuracy, if the loss has it.
std::vector<Metric> default_metrics(const Loss& loss);

}  // namespace dtrain::config
