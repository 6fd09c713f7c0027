// The trial of a `model:` experiment: a TorchScript model, its data, loss and optimizer, all from the experiment file.
#pragma once

#include <vector>

#include "dtrain/config/model_job.h"
#include "dtrain/train/trial.h"
#include "loss.h"
#include "outputs.h"
#include "script_model.h"

namespace dtrain::worker {

class ModelTrial final : public Trial {
 public:
  // The experiment must have a `model:`. ConfigError as ScriptModel.
  explicit ModelTrial(TrialContext& context);

  Loader training_loader() override;
  Loader validation_loader() override;
  Metrics train_batch(const Batch& batch) override;
  Metrics evaluate_batch(const Batch& batch) override;
  std::string why_not_repeatable() const override;
  void before_batch(const Batch& batch) override;
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override;

 private:
  std::vector<at::Tensor> inputs(const Batch& batch) const;
  LossValues evaluate(const Batch& batch);
  LossValues loss_of(const at::Tensor& output, const Batch& batch) const;

  TrialContext& context_;
  const config::ModelJob& job_;
  ScriptModel model_;
  const bool sequences_;  // LossInput::sequences
  const OutputChoice output_choice_;
  const std::vector<OutputChoice> auxiliary_choices_;  // in the order of job_.loss.auxiliary
  at::Tensor output_;                                  // of the last batch, its shape alone (at::kMeta)
};

}  // namespace dtrain::worker
