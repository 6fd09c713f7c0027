#include "model_trial.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/idx.h"
#include "dtrain/data/npy.h"
#include "dtrain/data/safetensors.h"
#include "dtrain/data/tokens.h"
#include "dtrain/run/rank_session.h"
#include "fixed_modes.h"

namespace dtrain::worker {

namespace {

Optimizer optimizer_of(const config::OptimizerSettings& settings) {
  switch (settings.kind) {
    case config::OptimizerKind::kSgd:
      return Sgd{.lr = settings.lr,
                 .momentum = settings.momentum,
                 .dampening = settings.dampening,
                 .weight_decay = settings.weight_decay,
                 .nesterov = settings.nesterov};
    case config::OptimizerKind::kAdam:
      return Adam{.lr = settings.lr,
                  .beta1 = settings.beta1,
                  .beta2 = settings.beta2,
                  .eps = settings.eps,
                  .weight_decay = settings.weight_decay};
    case config::OptimizerKind::kAdamW:
      return AdamW{.lr = settings.lr,
                   .beta1 = settings.beta1,
                   .beta2 = settings.beta2,
                   .eps = settings.eps,
                   .weight_decay = settings.weight_decay};
  }
  throw Error("unknown kind of optimizer " + std::to_string(static_cast<int>(settings.kind)));
}

LrSchedule schedule_of(const config::LrScheduleSettings& settings) {
  switch (settings.kind) {
    case config::LrScheduleKind::kConstant:
      return lr::constant();
    case config::LrScheduleKind::kStep:
      return lr::step(settings.step_size, settings.gamma);
    case config::LrScheduleKind::kCosine:
      return lr::warmup_cosine(settings.warmup_steps, settings.total_steps, settings.final_factor);
  }
  throw Error("unknown kind of learning rate schedule " + std::to_string(static_cast<int>(settings.kind)));
}

data::TokenType token_type(config::TokenType type) {
  switch (type) {
    case config::TokenType::kUint16:
      return data::TokenType::kUint16;
    case config::TokenType::kUint32:
      return data::TokenType::kUint32;
    case config::TokenType::kInt32:
      return data::TokenType::kInt32;
    case config::TokenType::kInt64:
      return data::TokenType::kInt64;
  }
  throw Error("unknown type of tokens " + std::to_string(static_cast<int>(type)));
}

// Field 0 is the features, field 1 the target.
std::shared_ptr<data::Dataset> read(const config::ModelData& settings, const config::DataSource& source,
                                    const data::HostShare& share) {
  switch (settings.format) {
    case config::DataFormat::kIdx:
      return data::read_idx(source.features, source.target, share);
    case config::DataFormat::kNpy:
      return data::load_npy(source.features, source.target, share);
    case config::DataFormat::kSafetensors:
      return data::load_safetensors(source.file, source.features_name, source.target_name, share);
    case config::DataFormat::kTokens:
      return data::load_tokens(source.file, token_type(settings.token_type), settings.sequence_length);
  }
  throw Error("unknown data format " + std::to_string(static_cast<int>(settings.format)));
}

}  // namespace

ModelTrial::ModelTrial(TrialContext& context)
    : context_(context),
      job_(context.session().experiment().model.value()),
      model_(job_.file),
      objective_(job_.loss, job_.data.format == config::DataFormat::kTokens) {
  if (const auto fixed = always_training(model_.script()); !fixed.empty() && context.rank() == 0) {
    context.session().log()->warn(
        "model: {} does {} in training mode during validation too, as a model that was traced in that mode does; use "
        "torch.jit.script() instead of torch.jit.trace()",
        job_.file.string(), join(fixed, " and "));
  }
  context.wrap_model(model_.tree());
  context.wrap_optimizer(optimizer_of(job_.optimizer));
  context.wrap_lr_scheduler(schedule_of(job_.optimizer.lr_schedule));
  if (job_.optimizer.max_gradient_norm > 0) context.clip_gradient_norm(job_.optimizer.max_gradient_norm);
}

Loader ModelTrial::training_loader() {
  return context_.loader(read(job_.data, job_.data.training, context_.host_share()));
}

Loader ModelTrial::validation_loader() {
  if (!job_.data.validation) return nullptr;
  return context_.loader(read(job_.data, *job_.data.validation, context_.host_share()),
                         {.shuffle = false, .drop_last = false});
}

at::Tensor ModelTrial::features(const Batch& batch) const {
  at::Tensor features = batch.tensors[0];
  if (job_.data.format == config::DataFormat::kIdx && features.dim() == 3) features = features.unsqueeze(1);
  const bool bytes = features.scalar_type() == at::kByte;
  if (bytes || job_.data.scale || features.is_floating_point()) features = features.to(model_.dtype());
  if (bytes || job_.data.scale) features = features * job_.data.scale.value_or(1.0 / 255);
  return features;
}

Metrics ModelTrial::train_batch(const Batch& batch) {
  const auto result = objective_.evaluate(model_.forward(features(batch)), batch.tensors[1]);
  if (!result.loss.requires_grad()) {
    throw Error("the model's output does not depend on any parameter that requires a gradient",
                "forward() must not run under torch.no_grad(), nor be traced from constants");
  }
  context_.backward(result.loss);
  model_.tree()->take_over_buffers();
  return result.metrics();
}

Metrics ModelTrial::evaluate_batch(const Batch& batch) {
  auto metrics = objective_.evaluate(model_.forward(features(batch)), batch.tensors[1]).metrics();
  model_.tree()->take_over_buffers();
  return metrics;
}

std::vector<std::filesystem::path> ModelTrial::save_more(const std::filesystem::path& folder) {
  model_.save(folder / "model.pt");
  return {folder / "model.pt"};
}

}  // namespace dtrain::worker
