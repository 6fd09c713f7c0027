// dtrain-worker EXPERIMENT.yaml: runs a rank of a `model:` experiment, which trains a model from a file without C++
// code. dtrain-worker --export: writes a checkpoint as such a file. dtrain-worker --inspect: prints a file's contents.
#include "dtrain/train/run_trial.h"
#include "worker/export.h"
#include "worker/inspect.h"
#include "worker/model_trial.h"

int main(int argc, char** argv) {
  if (dtrain::worker::asks_for_export(argc, argv)) return dtrain::worker::export_checkpoint(argc, argv);
  if (dtrain::worker::asks_for_inspection(argc, argv)) return dtrain::worker::inspect_model(argc, argv);
  const auto make_trial = [](dtrain::TrialContext& context) {
    return std::make_unique<dtrain::worker::ModelTrial>(context);
  };
  return dtrain::run_trial(argc, argv, make_trial, /*for_model=*/true);
}
