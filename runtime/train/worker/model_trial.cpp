#include "model_trial.h"

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/formats.h"
#include "dtrain/run/rank_session.h"
#include "fixed_modes.h"
#include "host_state.h"

namespace dtrain::worker {

namespace {

LrSchedule schedule_of(const config::LrScheduleSettings& settings) {
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

std::vector<ParameterGroup> groups_of(const config::OptimizerSettings& settings) {
  std::vector<ParameterGroup> groups;
  for (const config::ParameterGroupSettings& group : settings.groups) {
    Optimizer own = settings.optimizer;
    std::visit(
        [&](auto& held) {
          held.lr = group.lr.value_or(held.lr);
          held.weight_decay = group.weight_decay.value_or(held.weight_decay);
        },
        own);
    groups.push_back({"optimizer.groups[" + std::to_string(groups.size()) + "] (match: \"" + group.match + "\")",
                      matching(group.match), own, group.lr_schedule ? schedule_of(*group.lr_schedule) : LrSchedule()});
  }
  return groups;
}

// Field 0 is the features, field 1 the target.
std::shared_ptr<data::Dataset> read(const data::Format& format, const data::Source& source,
                                    const data::HostShare& share) {
  return std::visit([&](const auto& one) { return one.open(source, share); }, format);
}

// What a model with parameters of type `type` is given.
template <class Format>
at::Tensor features_for_model(const Format& format, at::Tensor features, at::ScalarType type) {
  std::optional<double> scale;
  if constexpr (requires { format.scale; }) scale = format.scale;
  if (format.kImages && features.dim() == 3) features = features.unsqueeze(1);
  const bool bytes = features.scalar_type() == at::kByte;
  if (bytes || scale || features.is_floating_point()) features = features.to(type);
  if (bytes || scale) features = features * scale.value_or(1.0 / 255);
  return features;
}

}  // namespace

ModelTrial::ModelTrial(TrialContext& context)
    : context_(context),
      job_(context.session().experiment().model.value()),
      model_(job_.file),
      sequences_(data::has_sequences(job_.data.format)) {
  if (const auto fixed = always_training(model_.script()); !fixed.empty() && context.rank() == 0) {
    context.session().log()->warn(
        "model: {} does {} in training mode during validation too, as a model that was traced in that mode does; use "
        "torch.jit.script() instead of torch.jit.trace()",
        job_.file.string(), join_with_and(fixed));
  }
  context.wrap_model(model_.tree());
  context.wrap_optimizer(job_.optimizer.optimizer, groups_of(job_.optimizer));
  context.wrap_lr_scheduler(schedule_of(job_.optimizer.lr_schedule));
  if (job_.optimizer.reduce_on_plateau) context.reduce_lr_on_plateau(*job_.optimizer.reduce_on_plateau);
  if (job_.optimizer.max_gradient_norm > 0) context.clip_gradient_norm(job_.optimizer.max_gradient_norm);
  if (job_.optimizer.max_gradient_value > 0) context.clip_gradient_value(job_.optimizer.max_gradient_value);
}

Loader ModelTrial::training_loader() {
  return context_.loader(read(job_.data.format, job_.data.training, context_.host_share()));
}

Loader ModelTrial::validation_loader() {
  if (!job_.data.validation) return nullptr;
  return context_.loader(read(job_.data.format, *job_.data.validation, context_.host_share()),
                         {.shuffle = false, .drop_last = false});
}

at::Tensor ModelTrial::features(const Batch& batch) const {
  return std::visit([&](const auto& format) { return features_for_model(format, batch.tensors[0], model_.dtype()); },
                    job_.data.format);
}

LossValues ModelTrial::evaluate(const Batch& batch) {
  const at::Tensor host_target = batch.host_tensors.empty() ? at::Tensor() : batch.host_tensors[1];
  const at::Tensor output = model_.forward(features(batch));
  output_ = at::empty(output.sizes(), at::TensorOptions().device(at::kMeta));
  return evaluate_loss(job_.loss, {output, batch.tensors[1], sequences_, host_target});
}

std::string ModelTrial::why_not_repeatable() const {
  const auto attribute = changed_attribute(model_.script());
  return attribute ? "the model's forward() changes its attribute '" + *attribute +
                         "', which is neither a parameter nor a buffer"
                   : "";
}

// A graph has no part that looks at the targets.
void ModelTrial::before_batch(const Batch& batch) {
  if (batch.host_tensors.empty() || !output_.defined()) return;
  check_target(job_.loss, {output_, {}, sequences_, batch.host_tensors[1]});
}

Metrics ModelTrial::train_batch(const Batch& batch) try {
  const LossValues result = evaluate(batch);
  if (!result.loss.requires_grad()) {
    throw Error("the model's output does not depend on any parameter that requires a gradient",
                "forward() must not run under torch.no_grad(), nor be traced from constants");
  }
  context_.backward(result.loss);
  model_.tree()->take_over_buffers();
  return result.metrics();
} catch (...) {
  model_.tree()->drop_assigned_buffers();  // where a graph could not be captured, the batch is trained once more
  throw;
}

Metrics ModelTrial::evaluate_batch(const Batch& batch) {
  auto metrics = evaluate(batch).metrics();
  model_.tree()->take_over_buffers();
  return metrics;
}

std::vector<std::filesystem::path> ModelTrial::save_more(const std::filesystem::path& folder) {
  model_.save(folder / "model.pt");
  return {folder / "model.pt"};
}

}  // namespace dtrain::worker
