// dtrain-worker EXPERIMENT.yaml: a rank of a `model:` experiment, which trains a TorchScript file without a line of
// C++.
#include "dtrain/train/run_trial.h"
#include "model_trial.h"

int main(int argc, char** argv) {
  const auto make_trial = [](dtrain::TrialContext& context) {
    return std::make_unique<dtrain::worker::ModelTrial>(context);
  };
  return dtrain::run_trial(argc, argv, make_trial, /*for_model=*/true);
}
