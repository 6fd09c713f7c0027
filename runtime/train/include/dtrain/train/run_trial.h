// The main() of a trial program: `program experiment.yaml [--run-dir DIR] [--set a.b=c]…`.
#pragma once

#include <functional>
#include <memory>

#include "dtrain/train/trial.h"

namespace dtrain {

using TrialFactory = std::function<std::unique_ptr<Trial>(TrialContext&)>;

// Runs one rank from start to end; returns the process's exit code (docs/errors.md). Throws nothing. `for_model`: true
// for dtrain-worker, which runs `model:` experiments; all other programs refuse them.
int run_trial(int argc, char** argv, const TrialFactory& make_trial, bool for_model = false);

template <typename T>
int run_trial(int argc, char** argv) {
  return run_trial(argc, argv, [](TrialContext& context) { return std::make_unique<T>(context); });
}

}  // namespace dtrain
