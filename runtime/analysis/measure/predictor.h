// Predicts a run's steps from its rows: it subtracts the seconds that a change saves in the ranks' own work or in the
// exchange from the measured steps. Refers to the Evidence, which must outlive it. Any thread may call.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

// The ranks' work in a row after a change: own work by rank, and the exposed exchange.
struct Changed {
  std::function<double(const StepLine&)> own_s;
  std::function<double(double)> exchange_s;
  bool alone = false;  // ranks do not wait for each other: the rank with most own work in all decides
  bool balanced = false;
};

class Predictor {
 public:
  // Requires an Evidence with at least one row.
  explicit Predictor(const Evidence& evidence);

  double step_s() const { return all_s_ / steps_; }
  double step_p50_s() const { return middle(walls_); }
  double samples_per_s() const { return samples_ / all_s_; }

  Prediction predict(Prediction prediction, const Changed& changed) const;
  // Predicts that each step takes this long.
  Prediction predict(Prediction prediction, double step_s) const;
  // Predicts an exchange after every k batches: within k batches only the sums of the ranks' work matter.
  Prediction predict_aggregated(Prediction prediction, int k) const;

 private:
  // The ranks' measured work in a row, or in several rows together.
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
  std::vector<std::vector<StepLine>> blocks_;  // sums of the rows before the first window
  std::vector<double> walls_;                  // of rows, mean over ranks
  double all_s_ = 0, steps_ = 0, samples_ = 0;
};

// Predicts changes. In the model, a step lasts as long as the slowest rank's own work in it plus the exposed exchange,
// which is the wait of the rank that comes last. A change reduces either; the model's gain is subtracted from the
// measured step. `tried`: the run that has tried replicated and sharded updates, this one or one of the same
// experiment.
WhatIf predict(const Evidence& evidence, const RunProfile& tried);

// Predicts more ranks, each with the same batch as now.
void predict_scaling(const Evidence& evidence, WhatIf& into);

// The predicted cost of a step's exchange on another link or with other bytes, from the measured collectives.
//
// The model takes the shortest of all ranks' times for a bucket as its transfer (the others' times include waiting for
// each other). A transfer consists of a latency, which the small collectives of the run show, and of bytes at a
// bandwidth. The exposed part of the exchange shrinks or grows by as much as the transfers do, and is at least the
// exposed part of the last bucket, because no computing can hide that.

struct ExchangeCost {
  double transfer_s = 0;  // of all buckets of one exchange, median over steps
  double mean_s = 0;      // of all buckets, mean over steps: larger if the link is slow at times
  double latency_s = 0;   // the part of transfer_s that does not depend on bytes
  double last_s = 0;      // transfer of the last bucket
  double last_exposed_share = 0;
  double exposed_s = 0;  // of one exchange, as measured; without waiting for the last rank
  double bytes = 0;      // of one rank
  int buckets = 0;
  bool gathers = false;  // reduce_scatter and all_gather instead of all_reduce

  // Returns the exposed seconds of an exchange with bandwidth, latency and bytes multiplied by these factors.
  double exposed_if(double bandwidth, double latency, double bytes_factor) const;
};

// Empty: no bucket was exchanged, or no step was recorded in full.
std::optional<ExchangeCost> fit_exchange_cost(const Evidence& evidence);

}  // namespace dtrain::analysis
