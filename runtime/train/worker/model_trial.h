// The trial of a `model:` experiment: model file, data, loss and optimizer come from the experiment file.
#pragma once

#include <memory>
#include <vector>

#include "dtrain/config/model_job.h"
#include "dtrain/data/formats.h"
#include "dtrain/train/trial.h"
#include "worker/file_model.h"
#include "worker/loss.h"

namespace dtrain::worker {

class ModelTrial final : public Trial {
 public:
  // The experiment must have a `model:`. ConfigError: those of load_model(), and keys that do not fit the model.
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
  // Opens a data set: field 0 is the features, field 1 the target; then come further inputs. `key`: the source's.
  Loader open(const data::Source& source, const std::vector<config::TransformStep>& transforms,
              const LoaderSettings& settings, const char* key, const FileModel& model);
  // ConfigError, on all ranks, unless `model` takes all batches of the loader, including all ranks' short last ones.
  void check_batches(const BatchSource& loader, const char* key, const FileModel& model) const;
  // Sets the optimizer, its groups and their schedules.
  void wrap_optimizer();
  void warn_of_fixed_modes();
  LossInput loss_input(const at::Tensor& output, const Batch& batch) const;
  // Adds the batch of a validation to the metrics. With the first batch of training it checks that the metrics fit.
  void give_to_metrics(const LossInput& input);

  // The fields of the data set: the features, the target, further inputs, and further tensors of the loss.
  struct Fields {
    data::Format format;               // with the names of all fields
    std::size_t more_inputs = 0;       // number of further inputs, from field 2 on
    std::vector<std::size_t> of_loss;  // indices of the loss's tensors, in the order of tensors_of()
    std::vector<bool> are_bool;        // true for fields that the model gets as bool
  };
  static Fields fields_of(const config::ModelJob& job);

  TrialContext& context_;
  const config::ModelJob& job_;
  const Fields fields_;
  const std::unique_ptr<FileModel> model_;
  std::unique_ptr<FileModel> eval_model_;  // the evaluation model of a pair, with the tensors of model_
  Loader training_data_;                   // from its opening until training_loader() returns it
  const bool sequences_;                   // LossInput::sequences
  const bool is_alone_;                    // LossInput::is_alone, in training
  const OutputChoice output_choice_;
  OutputChoice eval_output_choice_;                    // of eval_model_
  const std::vector<OutputChoice> auxiliary_choices_;  // in the order of job_.loss.auxiliary
  bool has_accuracy_ = false;                          // true if the metrics include accuracy
  std::vector<ModelMetric> metrics_;                   // the metrics other than accuracy
  bool metrics_are_checked_ = false;
  at::Tensor output_;  // shape of model_'s output for the last batch (at::kMeta)
};

}  // namespace dtrain::worker
