// What a change would bring, predicted from the measured steps. Steps do not include validation and checkpoints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct Prediction {
  std::string name;        // "free_loader", "free_network", "loader_alone", "balanced", "twice_the_link", …: stable
  std::string title;       // for people
  std::string assumption;  // what the prediction assumes
  std::string mock;        // the --mock that measures it: "loader", "comm", "loader,comm", "train"; empty: none does
  // The override of the experiment that makes the change: "optimizations.mixed_precision=bf16"; empty: there is none.
  std::string set{};
  int world_size = 0;
  double step_s = 0;                   // mean of a step
  double step_p50_s = 0;               // median
  double samples_per_s = 0;            // all ranks, over steps
  double gain = 0;                     // throughput over the measured one, minus 1
  double saved_s = 0;                  // of the loop of this run; 0 if the world size differs
  std::optional<double> efficiency{};  // of scaling, against the measured world
};

struct WhatIf {
  double step_s = 0, step_p50_s = 0, samples_per_s = 0;  // as measured, over steps
  std::vector<Prediction> changes;                       // of this run, greatest gain first; "loader_alone" is last
  std::vector<Prediction> scaling;                       // more ranks with the same batch per rank
  std::vector<std::string> notes;                        // what could not be predicted, and why
};

// The time with which a prediction is compared once the change was made: the longest of the ranks' median steps,
// without validation and checkpoints. If several batches lead to one exchange, their mean counts. Only steps that are
// recorded in full count; 0: there is none.
double slowest_rank_step_s(const RunProfile& run);
// How much of one core other programs took from the rank that had to share most, in percent of the loop's time. Empty:
// no sample of the system was taken in the loop.
std::optional<double> foreign_load_percent(const RunProfile& run);

Json to_json(const WhatIf& what_if);

}  // namespace dtrain::analysis
