// `dtrain what-if RUN --verify`: compares the predictions for a run with mock runs of its experiment. One thread.
//
// Plain runs and changed runs (mock runs, and runs with one key set) of the same length take turns, in several rounds.
// Each changed run is compared with the predictions from the plain runs right before and after it, so that a drift of
// the machine affects both. The median over the rounds counts. All runs are kept in RUN/what-if/N, so they take no
// numbers under runs/.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/rank/run_folder.h"

namespace dtrain::launcher {

struct VerifyRequest {
  rank::RunFolder run;
  int steps = 0;  // of each run; 0: as many as take a few seconds in RUN
  int rounds = 3;
  std::filesystem::path cluster;  // empty: the run's own if it is still there, else as `dtrain launch` finds one
};

// One prediction. Times are of a step: the median of the rank with the longest one, then the median over the rounds.
struct VerifiedPrediction {
  std::string name, title, mock, set;           // as in analysis::Prediction
  double plain_ms = 0;                          // of the plain runs before and after it
  std::optional<double> predicted_ms;           // from those; empty: not predicted, see `notes`
  std::optional<double> predicted_from_run_ms;  // from RUN, with all its steps
  double measured_ms = 0;
  std::vector<double> ratios;   // of each round: predicted over measured
  std::optional<double> ratio;  // their median
};

struct Verification {
  rank::RunFolder run;
  std::filesystem::path folder;  // of the runs that verify() made
  int steps = 0, rounds = 0;
  double run_ms = 0;  // a step of RUN
  std::vector<VerifiedPrediction> predictions;
  std::optional<double> foreign_percent;  // of one core, that other programs used; the most of all runs
  std::vector<std::string> notes;
};

// Starts the runs one after the other and calls `progress` with a message for each step. Empty: a signal has stopped it
// and the run in progress. ConfigError if RUN cannot be run again as it was; Error if one of the runs fails, with its
// last output.
std::optional<Verification> verify(const VerifyRequest& request,
                                   const std::function<void(const std::string&)>& progress);

Json to_json(const Verification& verification);
std::string verification_text(const Verification& verification);

}  // namespace dtrain::launcher
