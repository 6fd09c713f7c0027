// dtrain-worker EXPERIMENT.yaml: a rank of a `model:` experiment, which trains a TorchScript file without a line of
// C++. dtrain-worker --export: one of its checkpoints as TorchScript.
#include "dtrain/train/run_trial.h"
#include "export.h"
#include "model_trial.h"

int main(int argc, char** argv) {
  if (dtrain::worker::asks_for_export(argc, argv)) return dtrain::worker::export_checkpoint(argc, argv);
  const auto make_trial = [](dtrain::TrialContext& context) {
    return std::make_unique<dtrain::worker::ModelTrial>(context);
  };
  return dtrain::run_trial(argc, argv, make_trial, /*for_model=*/true);
}
