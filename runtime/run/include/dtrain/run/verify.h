// `dtrain what-if RUN --verify`: mock runs of a run's experiment beside what was predicted of it. One thread.
//
// Plain runs and mock runs of the same length take turns, in several rounds. Each mock run is compared with what the
// plain runs right before and after it predict, so that a machine that grows slower meanwhile does so in both; of the
// rounds the median counts. All of them are kept in RUN/what-if/N, where they take no number under runs/.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/run/run_folder.h"

namespace dtrain::run {

struct VerifyRequest {
  RunFolder run;
  int steps = 0;  // of each run; 0: some seconds of RUN's steps
  int rounds = 3;
  std::filesystem::path cluster;  // empty: the run's own, if that is a file, else found as by `dtrain launch`
};

// One mock. Times are of a step: the median of its rank with the longest, and of all rounds the median.
struct VerifiedPrediction {
  std::string name, title, mock;                // as in analysis::Prediction
  double plain_ms = 0;                          // of the plain runs around it
  std::optional<double> predicted_ms;           // from them; empty: not predicted, see `notes`
  std::optional<double> predicted_from_run_ms;  // from RUN, with all its steps
  double measured_ms = 0;
  std::vector<double> ratios;   // of each round, predicted over measured
  std::optional<double> ratio;  // their median
};

struct Verification {
  RunFolder run;
  std::filesystem::path folder;  // of the runs made here
  int steps = 0, rounds = 0;
  double run_ms = 0;  // a step of RUN
  std::vector<VerifiedPrediction> predictions;
  std::optional<double> foreign_percent;  // of one core, what other programs took: of all runs the most
  std::vector<std::string> notes;
};

// Starts the runs one after the other; `progress` is told what goes on. Empty: a signal has ended it, and the run that
// was under way has ended as well. ConfigError where RUN cannot be run again as it was; an Error where one of the runs
// fails, with what it said last.
std::optional<Verification> verify(const VerifyRequest& request,
                                   const std::function<void(const std::string&)>& progress);

Json to_json(const Verification& verification);
std::string verification_text(const Verification& verification);

}  // namespace dtrain::run
