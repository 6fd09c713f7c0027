#include "step/training_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/rank_session.h"
#include "model/model_report.h"
#include "model/model_tensors.h"
#include "step/checks.h"
#include "step/exchange_mode.h"
#include "step/local_mode.h"
#include "step/virtual_mode.h"

namespace dtrain::train {
namespace {

// Returns the model after the checks, which compare it over the ranks.
std::shared_ptr<torch::nn::Module> checked_model(const TrialContext::Wrapped& wrapped, const RunServices& run,
                                                 const StepOptions& options) {
  if (!wrapped.model)
    throw ConfigError("the trial handed over no model", "call context.wrap_model() in its constructor");
  if (!wrapped.optimizer) {
    throw ConfigError("the trial handed over no optimizer", "call context.wrap_optimizer() in its constructor");
  }
  if (options.max_gradient_norm > 0 && options.max_gradient_value > 0) {
    throw ConfigError("gradients are to be clipped by their norm and by value", "choose one of the two");
  }
  if (wrapped.models.size() == 1) {
    throw ConfigError("the trial has wrapped one model by the name '" + wrapped.models.front() + "'",
                      "call context.wrap_model(model) without a name where there is one model");
  }
  for (const std::string& model : wrapped.models) {
    if (wrapped.has_common_optimizer || wrapped.groups_of_models.contains(model)) continue;
    throw ConfigError("the model '" + model + "' has no optimizer",
                      "call context.wrap_optimizer(\"" + model + "\", optimizer) in the trial's constructor");
  }
  check(options, run.world, /*on_device=*/&run.device_communicator != &run.communicator);
  compare_models(*wrapped.model, run.control);
  return wrapped.model;
}

void warn_of_sum(const at::Tensor& loss, const RunServices& run) {
  if (!run.is_first_rank() || run.world.size == 1) return;
  const std::string sum = sum_over_samples(loss);
  if (sum.empty()) return;
  const std::string ranks = std::to_string(run.world.size);
  run.log->warn(
      "the loss is a sum over samples ({}). Each rank sums over its part of the batch, and gradients are averaged over "
      "the ranks: they are 1/{} of those of one process with the whole batch. Make the loss a mean over its samples "
      "(reduction=\"mean\"), or multiply it by the number of ranks, {}",
      sum, ranks, ranks);
}

// Lays out the parameters with rank 0's values on every rank, unless those of a checkpoint follow.
FlatParameters flat_parameters(const torch::nn::Module& model, const std::vector<std::string>& models,
                               comm::Communicator& communicator, const StepOptions& options) {
  if (!options.values_follow) broadcast_model(model, communicator);
  FlatParameters parameters(model, communicator, parameter_types(options), options.values_follow);
  parameters.number_models(models);
  return parameters;
}

FlatOptimizer flat_optimizer(const TrialContext::Wrapped& wrapped, FlatParameters& parameters, double ema) {
  if (wrapped.own_update) return FlatOptimizer(wrapped.own_update(), wrapped.schedule, parameters, ema);
  return FlatOptimizer(*wrapped.optimizer, wrapped.schedule, parameters, wrapped.groups, ema);
}

// Visits the last batch's norm, whose line in metrics.jsonl may not be written yet. Its text may be "nan".
void visit_gradient_norm(StateVisitor& visitor, std::int64_t batch, GradientNorms& norms) {
  const auto norm = norms.of(batch);
  std::string text = norm ? Json(number_or_text(*norm)).dump() : "";
  visitor.text("gradient_norm", text);
  if (!visitor.replaces() || text.empty()) return;
  if (const auto value = number_of(Json::parse(text))) norms.add(batch, *value);
}

struct UpdateCounters {
  FlatOptimizer& optimizer;
  void visit(StateVisitor& visitor) { optimizer.visit_counters(visitor); }
};

std::optional<LossScaler> make_scaler(const TrialContext::Wrapped& wrapped, const StepOptions& options,
                                      const FlatParameters& parameters) {
  if (options.precision != config::Precision::kFloat16) return std::nullopt;
  if (parameters.memory().on_host()) {
    throw ConfigError("optimizations.mixed_precision: float16 needs GPUs, and this rank trains on a CPU",
                      "use bf16 on CPUs");
  }
  if (!wrapped.models.empty()) {
    throw ConfigError("several models are not supported yet with mixed_precision: fp16", "use mixed_precision: bf16");
  }
  const auto has_dampening = [](const Optimizer& optimizer) {
    const Sgd* const sgd = std::get_if<Sgd>(&optimizer);
    return sgd && sgd->dampening != 0;
  };
  const auto of_group = [&](const ParameterGroup& group) { return has_dampening(group.optimizer); };
  if (has_dampening(*wrapped.optimizer) || std::any_of(wrapped.groups.begin(), wrapped.groups.end(), of_group)) {
    throw ConfigError(
        "sgd with dampening is not supported with mixed_precision: fp16: PyTorch applies the first update "
        "without it, and with fp16 only the GPU knows whether an update has been skipped",
        "set dampening to 0, or use mixed_precision: bf16");
  }
  return LossScaler(options.loss_scaling, parameters.memory().device());
}

std::uint64_t digest_of_rates(const FlatOptimizer& optimizer) {
  std::uint64_t digest = 0;
  for (const float rate : optimizer.learning_rates()) {
    digest = (digest ^ std::bit_cast<std::uint32_t>(rate)) * 0x100000001b3u;
  }
  return digest;
}

// Collective. The ranks' parameters are the same.
std::unique_ptr<StepMode> make_mode(const StepParts& parts, const ExchangeParts& more, const StepOptions& options) {
  const Mode mode = mode_of(options);
  if (mode == Mode::kAlone) return make_alone_mode(parts, options.strategy.sharded == config::ShardedOptimizer::kOn);
  if (mode == Mode::kVirtual) return make_virtual_mode(parts, more, options.ranks, options.strategy);
  if (mode == Mode::kLocal) return make_local_mode(parts, *options.local_sgd, options.strategy.seed);
  return make_exchange_mode(parts, more, options.strategy);
}

}  // namespace

TrainingStep::TrainingStep(const TrialContext::Wrapped& wrapped, const RunServices& run, const StepOptions& options)
    : run_(run),
      model_(checked_model(wrapped, run_, options)),
      non_finite_(run_, options.stop_on_non_finite),
      window_(options.aggregation_frequency, options.average_aggregated_gradients),
      models_(wrapped.models),
      parameters_(flat_parameters(*model_, wrapped.models, run_.device_communicator, options)),
      fusion_(parameters_, run_, fusion_options(options, run_.communicator.world_size())),
      optimizer_(flat_optimizer(wrapped, parameters_, options.ema)),
      exchange_(parameters_, run_.communicator, run_.device_communicator, run_.recorder),
      in_flight_(parameters_.memory().device(), run_.device_communicator, run_.recorder),
      memory_format_(run_, parameters_, in_flight_, options),
      scaler_(make_scaler(wrapped, options, parameters_)),
      watch_(*model_, parameters_),
      mode_(make_mode({.run = run_,
                       .parameters = parameters_,
                       .optimizer = optimizer_,
                       .watch = watch_,
                       .fusion = fusion_,
                       .exchange = exchange_,
                       .in_flight = in_flight_,
                       .non_finite = non_finite_,
                       .window = window_,
                       .models = models_,
                       .max_gradient_norm = options.max_gradient_norm,
                       .max_gradient_value = options.max_gradient_value,
                       .scaler = scaler_ ? &*scaler_ : nullptr,
                       .scaling_report = begin_report(options)},
                      {.gradient_norms = gradient_norms_,
                       .before_update = before_update_,
                       .is_settled = [this] { return memory_format_.settled(); },
                       .values_follow = options.values_follow,
                       .same_program = options.same_program},
                      options)),
      hooks_(parameters_, exchange_),
      may_keep_narrow_gradients_(may_keep_narrow_gradients(options, run_.world) && parameters_.memory().on_host() &&
                                 !models_.several()),
      ranks_(options.ranks) {
  if (ranks_.virtuals) buffers_.emplace(*model_, ranks_);
  if (parameter_types(options).shadow) narrow_use_.emplace(parameters_);
  mode_->vote().explain_with([this](Difference difference) { explain(difference); });
}

LossScalingReport* TrainingStep::begin_report(const StepOptions& options) {
  if (!scaler_) return nullptr;
  return &scaling_report_.emplace(run_, in_flight_, *scaler_, mode_of(options) == Mode::kLocal);
}

void TrainingStep::announce(bool has_batch, Announcement mine, std::int64_t place) {
  if (has_batch) window_.add_batch();
  place_ = has_batch ? place : -1;
  mine.has_batch = has_batch;
  mine.last_batch = window_.rounds_begun() - in_flight_.lag();
  mine.rates = has_batch ? digest_of_rates(optimizer_) : 0;
  mine.place = static_cast<std::uint64_t>(place) + 1;
  mode_->vote().announce(mine);
}

// Rates and places are compared when the ranks read the round, so all ranks come here together.
void TrainingStep::explain(Difference difference) {
  const bool of_rates = difference == Difference::kRates;
  Json mine = of_rates ? Json(optimizer_.learning_rates()) : Json::array({place_ >> 32, place_ & 0xffffffff});
  const std::vector<std::string> all = run_.control.gather("train/difference", mine.dump());
  std::size_t other = 1;
  while (other + 1 < all.size() && all[other] == all.front()) ++other;
  const std::string batch = std::to_string(window_.rounds_begun());
  const auto text = [&](std::size_t rank) {
    if (of_rates) return all[rank] + " on rank " + std::to_string(rank);
    const Json place = Json::parse(all[rank]);
    return "batch " + place[1].dump() + " of pass " + place[0].dump() + " over the loader on rank " +
           std::to_string(rank);
  };
  const std::string both = text(0) + " and " + text(other);
  if (of_rates) {
    throw rank::AgreedError("the learning rates of batch " + batch + " differ between ranks: " + both,
                            "step schedulers by a value that is the same on all ranks, such as session.mean(loss)");
  }
  throw rank::AgreedError(
      "the ranks train on parts of different batches in step " + batch + ": " + both,
      "leave a batch out, or the loop, on all ranks alike: decide by a value that is the same on all of them, "
      "such as session.mean(loss)");
}

void TrainingStep::begin_forward() {
  in_forward_ = true;
  memory_format_.begin_batch();
  if (narrow_use_) watching_.emplace(*narrow_use_);
}

void TrainingStep::leave_forward() {
  in_forward_ = false;
  watching_.reset();
}

void TrainingStep::begin_batch() {
  if (!in_forward_) begin_forward();
  in_forward_ = false;
  in_batch_ = true;
  batch_weight_.reset();
  batch_has_loss_ = false;
  models_.begin_batch();
  window_.begin_round();
  mode_->begin_batch();
}

void TrainingStep::begin_logical_rank(int logical_rank) {
  logical_rank_ = logical_rank;
  batch_weight_.reset();
  batch_has_loss_ = false;
  buffers_->load(static_cast<std::size_t>(logical_rank - ranks_.begin));
  mode_->begin_logical_rank(logical_rank);
}

void TrainingStep::end_logical_rank(int logical_rank) {
  mode_->end_logical_rank(logical_rank);
  buffers_->store(static_cast<std::size_t>(logical_rank - ranks_.begin));
  if (logical_rank + 1 == ranks_.end) buffers_->load(0);
}

void TrainingStep::backward(const at::Tensor& loss, const BackwardOptions& options) {
  const std::optional<double>& weight = options.weight;
  if (!in_batch_) throw Error("context.backward() was called outside train_batch()");
  if (options.more_follows && !std::exchange(adds_losses_, true) && may_keep_narrow_gradients_ && !narrow_use_) {
    throw Error("context.backward() is told that more follows for the first time after an optimizer step",
                "one rank with mixed_precision: bf16 keeps gradients in bf16 by then: sum the losses instead, or call "
                "it so from "
                "the first batch on");
  }
  models_.add(options.models);
  if (models_.several()) mode_->choose_models();
  if (batch_has_loss_ && weight.has_value() != batch_weight_.has_value()) {
    throw Error("context.backward() was called with a weight for one loss of a batch, and without one for another",
                "give all losses of a batch the same weight");
  }
  batch_has_loss_ = true;
  if (weight) weigh_batch(*weight);
  if (loss.numel() == 1 && weight != 0.0) capturing_ ? void(captured_loss_ = loss.detach()) : read_loss(loss);
  if (window_.rounds_begun() <= 1) warn_of_sum(loss, run_);
  const profile::PhaseScope phase(run_.recorder, profile::Phase::kBackward);
  watching_.reset();
  if (weight != 0.0) {
    const at::Tensor weighted = weight ? loss * *weight : loss;
    exchange_.backward(scaler_ ? scaler_->scaled(weighted) : weighted, {.more_follows = options.more_follows,
                                                                        .retain_graph = options.retain_graph,
                                                                        .inputs = inputs_of(options.models)});
  }
  if (narrow_use_) watching_.emplace(*narrow_use_);
}

std::vector<at::Tensor> TrainingStep::inputs_of(const std::vector<std::string>& models) const {
  std::vector<at::Tensor> inputs;
  if (models.empty()) return inputs;
  for (const auto& parameter : parameters_.parameters()) {
    const std::string& model = models_.names()[parameter.model];
    if (std::find(models.begin(), models.end(), model) == models.end()) continue;
    if (parameter.tensor.requires_grad()) inputs.push_back(parameter.tensor);
    for (const at::Tensor& tied : parameter.tied) {
      if (tied.requires_grad()) inputs.push_back(tied);
    }
  }
  if (!inputs.empty()) return inputs;
  throw Error(
      "context.backward() was called for '" + join(models, "', '") + "', and no parameter of it needs a gradient",
      "its parameters are frozen, or a model that was wrapped before shares them: name that one, too");
}

void TrainingStep::step_models() {
  if (!in_batch_) throw Error("context.step() was called outside train_batch()");
  if (!models_.several()) {
    throw Error("context.step() was called by a trial with one model",
                "the optimizer steps when train_batch() has returned; context.wrap_model(name, model) wraps several");
  }
  if (window_.length() > 1) {
    throw ConfigError(
        "context.step() needs optimizations.aggregation_frequency: 1, and it is " + std::to_string(window_.length()),
        "set it to 1, or leave the optimizer steps of all models to the end of the batch");
  }
  if (!models_.any_waiting()) {
    throw Error("context.step() was called, and context.backward() has not been called since the last step",
                "call context.backward(loss, {.models = {…}}) first");
  }
  watching_.reset();
  mode_->step_models();
  if (narrow_use_) watching_.emplace(*narrow_use_);
}

void TrainingStep::weigh_batch(double weight) {
  if (capturing_) throw Error("context.backward() is given a weight, which a graph would freeze");
  if (!(weight >= 0) || !std::isfinite(weight)) {
    throw Error("context.backward() was given the weight " + std::to_string(weight),
                "give the number of items that the loss is the mean of, at least 0");
  }
  if (batch_weight_ && *batch_weight_ != weight) {
    throw Error("context.backward() was given the weights " + std::to_string(*batch_weight_) + " and " +
                    std::to_string(weight) + " in one batch",
                "give all losses of a batch the same weight");
  }
  if (batch_weight_) return;
  batch_weight_ = weight;
  window_.weigh_batch(weight);
}

void TrainingStep::read_loss(const at::Tensor& loss) {
  in_flight_.read(loss, [this, batch = window_.rounds_begun(), rank = logical_rank_](std::span<const double> value) {
    non_finite_.see_loss(value.front(), batch, rank);
  });
}

bool TrainingStep::end_batch() {
  in_batch_ = false;
  watching_.reset();
  const bool stepped = mode_->end_batch();
  if (stepped && narrow_use_) compute_in_shadow();
  if (memory_format_.end_batch(stepped, window_.rounds_begun())) mode_->parameters_moved();
  return stepped;
}

void TrainingStep::abandon_batch() {
  in_batch_ = false;
  watching_.reset();
  mode_->abandon_batch();
}

// The model has gone through a window's batches once, which shows how it uses its parameters.
void TrainingStep::compute_in_shadow() {
  // Gradients that are scaled by the weights of batches would be rounded once more.
  const bool keep_narrow = may_keep_narrow_gradients_ && !batch_weight_ && !adds_losses_;
  for (std::size_t i = 0; i < parameters_.parameters().size(); ++i) {
    if (!narrow_use_->only_narrow(i)) continue;
    parameters_.compute_in_shadow(i, true);
    // Gradients of tied weights are summed, in float32.
    const bool is_tied = !parameters_.parameters()[i].tied.empty();
    if (keep_narrow && !is_tied) parameters_.keep_narrow_gradient(i);
  }
  narrow_use_.reset();
  if (keep_narrow) exchange_.gradients_moved();
  mode_->parameters_moved();
}

bool TrainingStep::settled() {
  return !narrow_use_ && mode_->capturable()->settled();
}

void TrainingStep::begin_capture() {
  in_batch_ = capturing_ = true;
  mode_->capturable()->begin_capture();
}

void TrainingStep::end_capture() {
  in_batch_ = capturing_ = false;
  mode_->capturable()->end_capture();
}

void TrainingStep::abandon_capture() {
  in_batch_ = capturing_ = false;
  captured_loss_ = at::Tensor();
  mode_->capturable()->abandon_capture();
}

void TrainingStep::before_replay() {
  window_.begin_round();
  mode_->capturable()->before_replay();
}

void TrainingStep::after_replay() {
  if (captured_loss_.defined()) read_loss(captured_loss_);
  mode_->capturable()->after_replay();
}

bool TrainingStep::flush() {
  models_.begin_batch();
  const bool left = mode_->flush();
  in_flight_.extend_batch();
  return left;
}

void TrainingStep::report() {
  mode_->report();
  const std::int64_t last_batch = window_.rounds_begun();
  // The losses and norms of the last batches have not been announced. Takes a batch at a time, the same on all ranks.
  for (std::int64_t batch = last_batch - in_flight_.lag(); batch <= last_batch; ++batch) {
    auto words = non_finite_.take_words(batch);
    mode_->vote().add_up(words);
    non_finite_.add_round(words, batch);
    in_flight_.finish_oldest();
  }
  // Weights become nan after a loss or gradient that is not finite. Only nan weights without such a cause are reported.
  if (run_.is_first_rank() && non_finite_.batches() == 0) {
    if (const auto parameter = first_nan_parameter(parameters_)) non_finite_.see_weights(*parameter, last_batch);
  }
  write_reports();
}

void TrainingStep::write_reports() {
  non_finite_.write();
  if (scaling_report_) scaling_report_->write();
}

std::vector<at::Tensor> TrainingStep::weight_averages() {
  if (!optimizer_.averages_weights()) return {};
  auto averages = optimizer_.steps() > 0 ? mode_->gather_state(optimizer_.average_index()) : std::vector<at::Tensor>();
  if (averages.empty()) return optimizer_.own_weight_averages();
  optimizer_.complete_averages(averages);
  return averages;
}

void TrainingStep::visit(StateVisitor& visitor) {
  if (!visitor.replaces()) take_over_written();
  ModelState rest(*model_);
  mode_->begin_visit(visitor);
  if (visitor.needs_shared()) visitor.part("parameters", parameters_);
  visitor.part("model", rest);
  visitor.part("optimizer", optimizer_);
  if (scaler_) {
    UpdateCounters counters{optimizer_};
    visitor.part("optimizer_counters", counters);
    visitor.part("loss_scaler", *scaler_);
  }
  if (scaling_report_ && visitor.replaces()) scaling_report_->begin_anew();
  visitor.part("memory_format", memory_format_);
  visitor.part("window", window_);
  if (models_.several()) visitor.part("models", models_);
  visitor.part("gradients", exchange_);
  visitor.part("non_finite", non_finite_);
  visit_gradient_norm(visitor, window_.rounds_begun(), gradient_norms_);
  visitor.part("mode", *mode_);
  mode_->end_visit(visitor);
}

}  // namespace dtrain::train
