// Computes the `metrics` of a `model:` experiment, other than accuracy, from the batches of a validation.
#pragma once

#include <functional>

#include "dtrain/config/metrics.h"
#include "dtrain/train/trial.h"
#include "worker/loss.h"

namespace dtrain::worker {

struct ModelMetric {
  AddedMetric metric;                             // for TrialContext::add_metric()
  std::function<void(const ScoredTargets&)> add;  // adds a batch to the metric
};

// `metric`: any except accuracy, which is a part of LossValues.
ModelMetric make_metric(const config::Metric& metric);

// Error if the metric cannot be computed for this number of classes or labels.
void check_metric(const config::Metric& metric, const ScoredTargets& batch);

}  // namespace dtrain::worker
