// What the `metrics` of a `model:` experiment besides accuracy compute of each batch of a validation.
#pragma once

#include <functional>

#include "dtrain/config/metrics.h"
#include "dtrain/train/trial.h"
#include "loss.h"

namespace dtrain::worker {

struct ModelMetric {
  AddedMetric metric;                             // for TrialContext::add_metric()
  std::function<void(const ScoredTargets&)> add;  // gives it a batch
};

// `metric`: any but accuracy, which is a part of the loss's values (LossValues).
ModelMetric make_metric(const config::Metric& metric);

// Error if the metric cannot be computed of so many classes or labels.
void check_metric(const config::Metric& metric, const ScoredTargets& batch);

}  // namespace dtrain::worker
