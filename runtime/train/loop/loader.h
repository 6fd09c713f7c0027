// Loaders as the training uses them: `--mock loader`, which reads only once, and the report of damaged samples.
// Training thread.
#pragma once

#include <cstdint>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"
#include "dtrain/train/metrics.h"

namespace dtrain::train {

// Returns a loader that repeats the first batch of `source` for as many batches as an epoch has (without end if that
// number is not known). A trial that writes into its batch sees these writes in the next batch.
Loader repeat_first_batch(Loader source);

// Reports damaged samples that a loader has left out: the log names the first ones, metrics and dumps count all.
class SkippedSamples {
 public:
  // `what`: "training" or "validation". The session outlives this object.
  SkippedSamples(rank::RankSession& session, const char* what) : session_(session), what_(what) {}

  void see(const Batch& batch);
  // Adds the metric kMetric, a sum, if the source may leave out samples.
  static void add_metric(const BatchSource& source, const Batch& batch, Metrics& metrics);

  static constexpr const char* kMetric = "skipped_samples";

 private:
  static constexpr std::int64_t kNamed = 10;

  rank::RankSession& session_;
  const char* what_;
  std::int64_t count_ = 0;
};

}  // namespace dtrain::train
