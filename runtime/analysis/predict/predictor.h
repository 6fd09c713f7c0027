// Predicts a run's steps from its rows: what a change takes off the ranks' own work or the exchange is taken off the
// steps as measured. Refers to the Evidence, which must outlive it. Any thread may call.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

// What ranks would do in a row after a change: own work by rank, and the exposed exchange.
struct Changed {
  std::function<double(const StepLine&)> own_s;
  std::function<double(double)> exchange_s;
  bool alone = false;  // ranks do not wait for each other: the one with most own work over all decides
  bool balanced = false;
};

class Predictor {
 public:
  // Of an Evidence with at least one row.
  explicit Predictor(const Evidence& evidence);

  double step_s() const { return all_s_ / steps_; }
  double step_p50_s() const { return middle(walls_); }
  double samples_per_s() const { return samples_ / all_s_; }

  Prediction predict(Prediction prediction, const Changed& changed) const;
  // A step that would take this long, each of them.
  Prediction predict(Prediction prediction, double step_s) const;
  // Batches are exchanged k times more seldom: within k of them only the sums of the ranks' work matter.
  Prediction predict_aggregated(Prediction prediction, int k) const;

 private:
  // What the ranks did in a row, or in many put together.
  struct Cells {
    std::vector<const StepLine*> ranks;
    double exchanges = 1;
  };

  void make_blocks();
  Cells cells(std::size_t row) const;
  double least_wait_s(std::size_t row) const;
  double saving_s(const Cells& cells, const Changed& changed, std::size_t only) const;
  double gain_of_windows(const Changed& changed) const;
  std::size_t slowest_rank(const Changed& changed) const;
  double middle(const std::vector<double>& walls) const;
  Prediction finish(Prediction prediction, double saved_s, double p50_s) const;

  const Rows& rows_;
  const Changed as_is_;
  bool has_windows_ = false;
  std::size_t whole_rows_ = 0;                 // before the first window
  std::vector<std::vector<StepLine>> blocks_;  // … put together
  std::vector<double> walls_;                  // of rows, mean over ranks
  double all_s_ = 0, steps_ = 0, samples_ = 0;
};

// A step is taken to last as long as the slowest rank's own work in it and the exchange's exposed part, which is what
// the rank waits that comes last. A change takes something off either; what the step loses by that is what it would
// gain, and is subtracted from the step as measured. `tried`: the run that has tried replicated and sharded updates,
// this one or one of the same experiment.
WhatIf predict(const Evidence& evidence, const RunProfile& tried);

// What the machine's limits promise of other types and memory formats.
void predict_computing(const Evidence& evidence, const Predictor& predictor, WhatIf& into);

// The same work on more ranks.
void predict_scaling(const Evidence& evidence, WhatIf& into);

}  // namespace dtrain::analysis
