// The trial of a `model:` experiment: a model from a file, its data, loss and optimizer, all from the experiment file.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dtrain/config/model_job.h"
#include "dtrain/data/formats.h"
#include "dtrain/train/trial.h"
#include "file_model.h"
#include "loss.h"
#include "metrics.h"
#include "outputs.h"

namespace dtrain::worker {

class ModelTrial final : public Trial {
 public:
  // The experiment must have a `model:`. ConfigError as load_model().
  explicit ModelTrial(TrialContext& context);

  Loader training_loader() override;
  Loader validation_loader() override;
  Metrics train_batch(const Batch& batch) override;
  Metrics evaluate_batch(const Batch& batch) override;
  std::string why_not_repeatable() const override;
  std::string state_owner() const override { return "a model's file"; }
  void before_batch(const Batch& batch) override;
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override;

 private:
  std::vector<at::Tensor> inputs(const Batch& batch) const;
  LossValues evaluate(const Batch& batch);
  // The model that computes in validation.
  FileModel& evaluating_model() { return eval_model_ ? *eval_model_ : *model_; }
  void load_pair();
  Loader open_training_data();
  // That `model` takes all batches of the loader, the short last ones of all ranks too. The same on all ranks.
  void check_batches(const BatchSource& loader, const char* key, const FileModel& model) const;
  // The optimizer, its groups and their schedules.
  void wrap_optimizer();
  void warn_of_fixed_modes();
  LossInput loss_input(const at::Tensor& output, const Batch& batch) const;
  // Gives the batch of a validation to the metrics. Of the first one of training it looks whether they fit.
  void give_to_metrics(const LossInput& input);

  // The fields of the data set: the features, the target, further inputs, and what else the loss gets.
  struct Fields {
    data::Format format;               // with the names of them all
    std::size_t more_inputs = 0;       // from field 2 on
    std::vector<std::size_t> of_loss;  // in the order of tensors_of()
    std::vector<bool> are_bool;        // those that the model gets as they are in the data: bool
  };
  static Fields fields_of(const config::ModelJob& job);

  TrialContext& context_;
  const config::ModelJob& job_;
  const Fields fields_;
  const std::unique_ptr<FileModel> model_;
  std::unique_ptr<FileModel> eval_model_;  // of a pair: evaluates, with the tensors of model_
  Loader training_data_;                   // once it is open, until training_loader() returns it
  const bool sequences_;                   // LossInput::sequences
  const bool is_alone_;                    // LossInput::is_alone, in training
  const OutputChoice output_choice_;
  OutputChoice eval_output_choice_;                    // of eval_model_
  const std::vector<OutputChoice> auxiliary_choices_;  // in the order of job_.loss.auxiliary
  bool has_accuracy_ = false;                          // among the metrics
  std::vector<ModelMetric> metrics_;                   // the others
  bool metrics_are_checked_ = false;
  at::Tensor output_;  // of model_ for the last batch, its shape alone (at::kMeta)
};

}  // namespace dtrain::worker
