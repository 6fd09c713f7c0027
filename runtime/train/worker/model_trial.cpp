// The trial of a `model:` experiment: model file, data, loss and optimizer come from the experiment file.
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/config/model_job.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/image_folder.h"
#include "dtrain/data/safetensors.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "worker/chunked_loss.h"
#include "worker/file_model.h"
#include "worker/loss.h"

namespace dtrain::worker {
namespace {

LrSchedule plain_schedule(const config::LrScheduleSettings& settings) {
  const std::int64_t left = settings.total_steps - settings.warmup_steps;
  const auto after_warmup = [&]() -> LrSchedule {
    switch (settings.kind) {
      case config::LrScheduleKind::kConstant:
        return lr::constant();
      case config::LrScheduleKind::kStep:
        return lr::step(settings.step_size, settings.gamma);
      case config::LrScheduleKind::kMultiStep:
        return lr::multi_step(settings.milestones, settings.gamma);
      case config::LrScheduleKind::kExponential:
        return lr::exponential(settings.gamma);
      case config::LrScheduleKind::kLinear:
        return lr::linear(left, settings.first_factor, settings.final_factor);
      case config::LrScheduleKind::kPolynomial:
        return lr::polynomial(left, settings.power, settings.final_factor);
      case config::LrScheduleKind::kCosine:
        return lr::cosine(left, settings.final_factor);
      case config::LrScheduleKind::kOneCycle:
        return lr::one_cycle(settings.total_steps, settings.rise, settings.div_factor, settings.final_div_factor);
    }
    throw Error("unknown kind of learning rate schedule " + std::to_string(static_cast<int>(settings.kind)));
  };
  return lr::warmup(settings.warmup_steps, after_warmup());
}

bool counts_epochs(const config::OptimizerSettings& settings) {
  const auto by_epochs = [](const config::LrScheduleSettings& schedule) {
    return schedule.unit == config::LrScheduleUnit::kEpochs;
  };
  return by_epochs(settings.lr_schedule) ||
         std::any_of(settings.groups.begin(), settings.groups.end(), [&](const config::ParameterGroupSettings& group) {
           return group.lr_schedule && by_epochs(*group.lr_schedule);
         });
}

// Lengths of an optimizer step and of an epoch, in batches of all ranks together.
struct StepLengths {
  std::int64_t step = 1;
  std::int64_t epoch = 1;
};

LrSchedule schedule_of(const config::LrScheduleSettings& settings, const StepLengths& batches) {
  LrSchedule schedule = plain_schedule(settings);
  if (settings.unit == config::LrScheduleUnit::kSteps) return schedule;
  // The factor of the epoch of the step's first batch, for an epoch need not be a whole number of steps.
  return [batches, schedule = std::move(schedule)](std::int64_t step) {
    return schedule(step * batches.step / batches.epoch);
  };
}

std::vector<ParameterGroup> groups_of(const config::OptimizerSettings& settings, const StepLengths& batches) {
  std::vector<ParameterGroup> groups;
  for (const config::ParameterGroupSettings& group : settings.groups) {
    Optimizer own = settings.optimizer;
    std::visit(
        [&](auto& held) {
          held.lr = group.lr.value_or(held.lr);
          if constexpr (requires { held.adamw_lr; }) held.adamw_lr = group.lr.value_or(held.adamw_lr);
          held.weight_decay = group.weight_decay.value_or(held.weight_decay);
        },
        own);
    groups.push_back(
        {.name = "optimizer.groups[" + std::to_string(groups.size()) + "] (match: \"" + group.match + "\")",
         .includes = matching(group.match),
         .optimizer = own,
         .schedule = group.lr_schedule ? schedule_of(*group.lr_schedule, batches) : LrSchedule(),
         .max_gradient_norm = group.max_gradient_norm,
         .max_gradient_value = group.max_gradient_value});
  }
  return groups;
}

// Freezes the parameters that match none of the patterns under any of their names.
void freeze_others(torch::nn::Module& model, const std::string& patterns) {
  const auto is_trained = matching(patterns);
  const auto parameters = model.named_parameters();
  std::vector<at::Tensor> trained;
  for (const auto& item : parameters) {
    if (item.value().requires_grad() && is_trained(item.key(), item.value())) trained.push_back(item.value());
  }
  if (trained.empty()) {
    throw ConfigError("optimizer.trainable: no parameter that requires a gradient matches \"" + patterns + "\"",
                      "the first parameter is '" + parameters.front().key() + "'; * stands for any text");
  }
  for (const auto& item : parameters) {
    const auto same = [&](const at::Tensor& tensor) { return tensor.is_same(item.value()); };
    if (std::none_of(trained.begin(), trained.end(), same)) item.value().set_requires_grad(false);
  }
}

LoaderSettings settings_of(const config::LoaderKeys& keys) {
  return {.workers = keys.workers,
          .prefetch = keys.prefetch,
          .pin = keys.pin,
          .shuffle = keys.shuffle,
          .drop_last = keys.drop_last,
          .skip_damaged = keys.on_error == config::OnDamage::kSkip,
          .max_skipped = keys.max_skipped,
          .shuffle_window = keys.shuffle_window << 20};
}

// Checks folders of pictures. Shards have class numbers that the user has chosen.
void check_classes(const config::ModelData& data) {
  if (!std::holds_alternative<data::ImageFolder>(data.format) || !data.validation) return;
  data::check_same_classes(data.training.at("folder"), data.validation->at("folder"));
}

// Converts the features for a model that takes them in `type`.
template <class Format>
at::Tensor features_for_model(const Format& format, at::Tensor features, at::ScalarType type) {
  std::optional<double> scale;
  if constexpr (requires { format.scale; }) scale = format.scale;
  if constexpr (requires { format.kImages; }) {
    if (format.kImages && features.dim() == 3) features = features.unsqueeze(1);
  }
  if (!at::isFloatingType(type)) return features;
  const bool bytes = features.scalar_type() == at::kByte;
  if (bytes || scale || features.is_floating_point()) features = features.to(type);
  if (bytes || scale) features = features * scale.value_or(1.0 / 255);
  return features;
}

// Refuses data.scale for a model with integer features, which gets the data's integers unchanged.
void check_scale(const data::Format& format, const FileModel& model) {
  const bool scaled = std::visit(
      [](const auto& held) {
        if constexpr (requires { held.scale; }) return held.scale.has_value();
        return false;
      },
      format);
  if (!scaled || at::isFloatingType(model.features_type())) return;
  throw ConfigError("data.scale has no effect: the model takes its features as whole numbers",
                    "leave it out, or export the model with features in floating point");
}

std::vector<OutputChoice> auxiliary_choices(const config::LossSettings& loss) {
  std::vector<OutputChoice> choices;
  for (const auto& [name, factor] : loss.auxiliary) choices.push_back({"loss.auxiliary." + name, name});
  return choices;
}

bool is_from_model(const config::LossSettings& loss) {
  return std::holds_alternative<config::FromModel>(loss.loss);
}

// The inputs of forward() that the training transforms add. Those of validation add the same.
std::vector<std::string> inputs_of_transforms(const config::ModelJob& job) {
  return data::more_inputs_of(config::transforms_of(job.data.transforms.training));
}

std::vector<ModelInput> inputs_of(const config::ModelJob& job) {
  const auto* safetensors = std::get_if<data::Safetensors>(&job.data.format);
  const auto name_of = [&](const char* key) { return safetensors ? job.data.training.at(key) : std::string(); };
  std::vector<ModelInput> inputs{{"the features", name_of("features")}};
  if (safetensors) {
    for (const std::string& name : safetensors->more_inputs) inputs.push_back({"'" + name + "'", name});
  }
  for (const std::string& name : inputs_of_transforms(job)) inputs.push_back({"'" + name + "'", name});
  if (is_from_model(job.loss)) inputs.push_back({"the target", name_of("target")});
  return inputs;
}

class ModelTrial final : public Trial {
 public:
  explicit ModelTrial(TrialContext& context)
      : context_(context),
        job_(context.session().experiment().model.value()),
        fields_(fields_of(job_)),
        model_(load_model(job_.file)),
        sequences_(data::has_sequences(job_.data.format)),
        is_alone_(context.world_size() == 1 && context.session().experiment().optimizations.aggregation_frequency == 1),
        output_choice_{"loss.output", job_.loss.output},
        auxiliary_choices_(auxiliary_choices(job_.loss)) {
    std::vector<OutputChoice> outputs = auxiliary_choices_;
    outputs.insert(outputs.begin(), output_choice_);
    model_->check_signature(inputs_of(job_), outputs);
    check_virtual_ranks();
    check_scale(job_.data.format, *model_);
    check_classes(job_.data);
    const config::Optimizations& optimizations = context.session().experiment().optimizations;
    if (!optimizations.gradient_checkpointing.empty())
      model_->checkpoint_modules(optimizations.gradient_checkpointing, "optimizations.gradient_checkpointing");
    chunked_loss_ = std::make_unique<ChunkedLoss>(job_, output_choice_, *model_, context.session());
    if (config::weighs_batches(job_.loss.loss) &&
        !std::holds_alternative<comm::NoCompression>(optimizations.gradient_compression)) {
      throw ConfigError(
          "loss: ignore_index and class_weights are not supported with optimizations.gradient_compression",
          "turn compression off, because it needs the weight of all batches before backward has ended");
    }
    if (!job_.eval_file.empty()) {
      load_pair();
    } else if (job_.data.validation) {
      model_->check_evaluation();
    }
    warn_of_fixed_modes();
    for (const config::Metric& metric : job_.metrics) {
      if (metric.kind == config::MetricKind::kAccuracy) {
        has_accuracy_ = true;
        continue;
      }
      metrics_.push_back(make_metric(metric));
      std::visit([&](const auto& added) { context.add_metric(metric.word, added); }, metrics_.back().metric);
    }
    if (!job_.optimizer.trainable.empty()) freeze_others(*model_->tree(), job_.optimizer.trainable);
    context.wrap_model(model_->tree());
    wrap_optimizer();
    if (job_.optimizer.reduce_on_plateau) context.reduce_lr_on_plateau(*job_.optimizer.reduce_on_plateau);
    if (job_.optimizer.max_gradient_norm > 0) context.clip_gradient_norm(job_.optimizer.max_gradient_norm);
    if (job_.optimizer.max_gradient_value > 0) context.clip_gradient_value(job_.optimizer.max_gradient_value);
  }

  Loader training_loader() override {
    return training_data_ ? std::exchange(training_data_, nullptr) : open_training_data();
  }

  Loader validation_loader() override {
    if (!job_.data.validation) return nullptr;
    LoaderSettings settings = settings_of(job_.data.loader);
    settings.shuffle = settings.drop_last = false;
    return open(*job_.data.validation, job_.data.transforms.validation, settings, "data.validation",
                evaluating_model());
  }

  Metrics train_batch(const Batch& batch) override try {
    const LossValues result = evaluate(batch);
    if (!result.loss.requires_grad()) {
      throw Error("the model's output does not depend on any parameter that requires a gradient",
                  "forward() must not run under torch.no_grad(), nor be traced from constants");
    }
    result.weight ? context_.backward(result.loss, *result.weight) : context_.backward(result.loss);
    model_->take_over_buffers();
    return result.metrics();
  } catch (...) {
    model_->drop_assigned_buffers();  // after a failed capture of a graph the batch is trained again
    throw;
  }

  Metrics evaluate_batch(const Batch& batch) override {
    auto metrics = evaluate(batch).metrics();
    evaluating_model().take_over_buffers();
    return metrics;
  }

  at::Tensor predict_batch(const Batch& batch) override {
    FileModel& model = evaluating_model();
    const at::Tensor output =
        model.output(model.forward(inputs(batch)), eval_model_ ? eval_output_choice_ : output_choice_);
    model.take_over_buffers();
    return !eval_model_ && chunked_loss_->has_layer() ? chunked_loss_->scores(output) : output;
  }

  std::string why_not_repeatable() const override {
    if (config::weighs_batches(job_.loss.loss)) return "with ignore_index or class_weights, each batch has a weight";
    if (!fields_.of_loss.empty())
      return std::string("the loss ") + dtrain::word_of(job_.loss.loss) + " looks at values of each batch on the host";
    return model_->why_not_repeatable();
  }

  std::string state_owner() const override { return "a model's file"; }

  // Checks the targets here, because a CUDA graph of the step cannot check them.
  void before_batch(const Batch& batch) override {
    if (batch.host_tensors.empty() || !output_.defined()) return;
    LossInput input{output_, {}, sequences_, batch.host_tensors[1]};
    input.is_alone = is_alone_;
    check_target(job_.loss.loss, input);
  }

  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override {
    const std::string extension = model_->extension();
    std::vector<std::filesystem::path> files{folder / ("model" + extension)};
    model_->save(files.back());
    if (eval_model_) {
      files.push_back(folder / ("model_eval" + extension));
      eval_model_->save(files.back());
    }
    return files;
  }

 private:
  std::vector<at::Tensor> inputs(const Batch& batch) const {
    const at::ScalarType type = model_->dtype();
    const auto is_bool = [&](std::size_t field) { return field < fields_.are_bool.size() && fields_.are_bool[field]; };
    std::vector<at::Tensor> inputs;
    if (is_bool(0)) {
      inputs.push_back(batch.tensors[0].to(at::kBool));
    } else {
      inputs.push_back(std::visit(
          [&](const auto& format) { return features_for_model(format, batch.tensors[0], model_->features_type()); },
          job_.data.format));
    }
    for (std::size_t field = 2; field < 2 + fields_.more_inputs; ++field) {
      const at::Tensor& input = batch.tensors[field];
      inputs.push_back(is_bool(field) ? input.to(at::kBool) : input.is_floating_point() ? input.to(type) : input);
    }
    if (is_from_model(job_.loss)) inputs.push_back(batch.tensors[1]);
    return inputs;
  }

  // Auxiliary outputs are for training: some models return None in their place in evaluation.
  LossValues evaluate(const Batch& batch) {
    const bool by_pair = eval_model_ && !model_->tree()->is_training();
    FileModel& model = by_pair ? *eval_model_ : *model_;
    const c10::IValue returned = model.forward(inputs(batch));
    LossInput input = loss_input(model.output(returned, by_pair ? eval_output_choice_ : output_choice_), batch);
    const bool training = model_->tree()->is_training();
    LossValues values = !by_pair && chunked_loss_->has_layer()
                            ? chunked_loss_->evaluate(input, /*needs_scores=*/!training && !metrics_.empty())
                            : evaluate_loss(job_.loss.loss, input);
    if (!by_pair) output_ = at::empty(input.output.sizes(), at::TensorOptions().device(at::kMeta));
    give_to_metrics(input);
    if (!training) return values;
    input.accuracy = false;
    for (std::size_t i = 0; i < auxiliary_choices_.size(); ++i) {
      input.output = model.output(returned, auxiliary_choices_[i]);
      values.loss = values.loss + evaluate_loss(job_.loss.loss, input).loss * job_.loss.auxiliary[i].second;
    }
    return values;
  }

  // TorchScript records the first calls of a process and compiles the model for the later ones, with other bits.
  void check_virtual_ranks() const {
    if (!context_.session().logical().virtuals || model_->extension() == std::string_view(".pt2")) return;
    throw ConfigError(
        "model: " + job_.file.string() +
            " is TorchScript, which is not supported with reproducibility.virtual_ranks: the first batches "
            "of a process are computed in another way than the later ones",
        "export the model with torch.export (docs/exporting.md), or leave the key out");
  }

  // The model that computes in validation.
  FileModel& evaluating_model() { return eval_model_ ? *eval_model_ : *model_; }

  // Auxiliary outputs are for training: a model that returns a tuple may return the scores alone in evaluation.
  void load_pair() {
    eval_model_ = load_eval_model(job_.eval_file, *model_);
    eval_output_choice_ = output_choice_;
    if (eval_model_->returns_one_tensor()) eval_output_choice_.name.clear();
    eval_model_->check_signature(inputs_of(job_), {eval_output_choice_});
  }

  Loader open_training_data() {
    return open(job_.data.training, job_.data.transforms.training, settings_of(job_.data.loader), "data.training",
                *model_);
  }

  // Opens a data set: field 0 is the features, field 1 the target; then come further inputs. `key`: the source's.
  Loader open(const data::Source& source, const std::vector<config::TransformStep>& transforms,
              const LoaderSettings& settings, const char* key, const FileModel& model) {
    Loader loader = context_.loader(
        data::open_source(fields_.format, source, config::transforms_of(transforms), context_.host_share()), settings);
    check_batches(*loader, key, model);
    return loader;
  }

  // ConfigError, on all ranks, unless `model` takes all batches of the loader, including all ranks' short last ones.
  void check_batches(const BatchSource& loader, const char* key, const FileModel& model) const {
    const auto samples = loader.samples_per_epoch();
    if (!samples) return;
    const std::int64_t ranks = context_.world_size(), each = context_.batch_size();
    const auto check = [&](const char* kind, std::int64_t size) {
      if (size == 0) return;
      model.check_samples(size, std::string(key) + " has " + kind + std::to_string(size) + " samples" +
                                    (ranks > 1 ? " on a rank" : ""));
    };
    if (*samples >= each * ranks) check("batches of ", each);
    const std::int64_t left = *samples % (each * ranks);  // divided among ranks as in Sampler::part()
    if (left % ranks > 0) check("a last batch of ", left / ranks + 1);
    if (left > 0) check("a last batch of ", left / ranks);
  }

  // Sets the optimizer, its groups and their schedules.
  void wrap_optimizer() {
    StepLengths batches;
    if (counts_epochs(job_.optimizer)) {
      training_data_ = open_training_data();
      const auto epoch = training_data_->batches_per_epoch();
      if (!epoch) {
        throw ConfigError("optimizer.lr_schedule: unit is epochs, but the training data has no known length",
                          "count optimizer steps: unit: steps");
      }
      batches.step = context_.session().experiment().optimizations.aggregation_frequency;
      batches.epoch = std::max<std::int64_t>(1, *epoch);  // a later check refuses data without a whole batch
    }
    context_.wrap_optimizer(job_.optimizer.optimizer, groups_of(job_.optimizer, batches));
    context_.wrap_lr_scheduler(schedule_of(job_.optimizer.lr_schedule, batches));
  }

  void warn_of_fixed_modes() {
    if (context_.rank() != 0) return;
    const auto warn = [&](const std::filesystem::path& file, const std::optional<FileModel::Warning>& warning) {
      if (warning) context_.session().log()->warn("model: {} {}; {}", file.string(), warning->what, warning->remedy);
    };
    warn(job_.file, model_->fixed_mode(/*for_training=*/true, /*for_evaluation=*/!eval_model_));
    warn(job_.file, model_->suspected_backward());
    if (eval_model_) warn(job_.eval_file, eval_model_->fixed_mode(/*for_training=*/false, /*for_evaluation=*/true));
  }

  LossInput loss_input(const at::Tensor& output, const Batch& batch) const {
    const std::vector<at::Tensor>& on_host = batch.host_tensors;  // empty: the whole batch is in host memory
    LossInput input{output, batch.tensors[1], sequences_, on_host.empty() ? at::Tensor() : on_host[1], has_accuracy_};
    input.is_alone = is_alone_ || !model_->tree()->is_training();
    for (const std::size_t field : fields_.of_loss) {
      input.more.push_back(on_host.empty() ? batch.tensors[field] : on_host[field]);
    }
    return input;
  }

  // Adds the batch of a validation to the metrics. With the first batch of training it checks that the metrics fit.
  void give_to_metrics(const LossInput& input) {
    if (metrics_.empty()) return;
    const bool training = model_->tree()->is_training();
    if (training && std::exchange(metrics_are_checked_, true)) return;
    const std::optional<ScoredTargets> batch = scored_targets(job_.loss.loss, input);
    if (!batch) throw Error(std::string("no metrics can be computed with loss ") + dtrain::word_of(job_.loss.loss));
    for (const config::Metric& metric : job_.metrics) check_metric(metric, *batch);
    if (training) return;
    for (const ModelMetric& metric : metrics_) metric.add(*batch);
  }

  // The fields of the data set: the features, the target, further inputs, and further tensors of the loss.
  struct Fields {
    data::Format format;               // with the names of all fields
    std::size_t more_inputs = 0;       // number of further inputs, from field 2 on
    std::vector<std::size_t> of_loss;  // indices of the loss's tensors, in the order of tensors_of()
    std::vector<bool> are_bool;        // true for fields that the model gets as bool
  };

  static Fields fields_of(const config::ModelJob& job) {
    Fields fields{job.data.format, inputs_of_transforms(job).size(), {}, {}};
    auto* const safetensors = std::get_if<data::Safetensors>(&fields.format);
    if (!safetensors) return fields;
    std::vector<std::string>& names = safetensors->more_inputs;
    fields.more_inputs = names.size();
    const auto are_bool = [&](const data::Source& source) {
      const std::vector<std::string> bools = data::bool_tensors(source.at("file"));
      const auto is_bool = [&](const std::string& name) {
        return std::find(bools.begin(), bools.end(), name) != bools.end();
      };
      std::vector<bool> are{is_bool(source.at("features")), false};
      for (const std::string& name : names) are.push_back(is_bool(name));
      return are;
    };
    fields.are_bool = are_bool(job.data.training);
    if (job.data.validation && are_bool(*job.data.validation) != fields.are_bool) {
      throw ConfigError("a tensor is BOOL in one of data.training and data.validation, and in the other it is not",
                        "save both with the same types");
    }
    for (const std::string& name : config::tensors_of(job.loss.loss)) {
      const auto found = std::find(names.begin(), names.end(), name);
      fields.of_loss.push_back(2 + static_cast<std::size_t>(found - names.begin()));
      if (found == names.end()) names.push_back(name);
    }
    return fields;
  }

  TrialContext& context_;
  const config::ModelJob& job_;
  const Fields fields_;
  const std::unique_ptr<FileModel> model_;
  std::unique_ptr<ChunkedLoss> chunked_loss_;
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

}  // namespace

std::unique_ptr<Trial> make_model_trial(TrialContext& context) {
  return std::make_unique<ModelTrial>(context);
}

}  // namespace dtrain::worker
