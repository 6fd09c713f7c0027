#include "loop/skipped_samples.h"

namespace dtrain::train {

void SkippedSamples::see(const Batch& batch) {
  for (const data::SkippedSample& sample : batch.skipped) {
    if (++count_ > kNamed) return;
    session_.log()->warn("{}: left out a damaged sample: {}", what_, sample.damage);
    if (count_ == kNamed) session_.log()->warn("{}: further samples that are left out are only counted", what_);
  }
}

void SkippedSamples::add_metric(const BatchSource& source, const Batch& batch, Metrics& metrics) {
  if (!source.may_skip()) return;
  metrics.insert_or_assign(kMetric, MetricValue(static_cast<double>(batch.skipped.size()), Reduction::kSum));
}

}  // namespace dtrain::train
