#include "step/local_mode.h"

#include <algorithm>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::train {

void refuse_to_abandon(const char* with) {
  throw ConfigError(
      std::string("the gradients of a backward() are dropped without a step, which is not supported with ") + with,
      "decide before backward() whether the batch is trained on");
}

LocalStep::LocalStep(const StepParts& parts, LocalUpdate::Parts updated)
    : parts_(parts),
      strategy_(parts.parameters, parts.optimizer, parts.run.device_communicator, parts.run.recorder, updated) {
  strategy_.set_plan(parts_.fusion.plan());
  parts_.exchange.use(strategy_, parts_.fusion.plan());
  parts_.watch.note(/*look_closer=*/false);
}

void LocalStep::step_models() {
  take(/*last=*/false);
  parts_.parameters.mark_changed(parameters_in_step_);
  parts_.watch.note(/*look_closer=*/false);
  parts_.exchange.begin_batch(/*exchange=*/false);
}

void LocalStep::take(bool last) {
  parts_.watch.check();
  parts_.window.check_weights();
  if (parts_.models.several()) {
    const auto all = parts_.parameters.parameters();
    parameters_in_step_.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) parameters_in_step_[i] = parts_.models.waiting()[all[i].model];
    parts_.models.stepped();
  }
  const auto used = parts_.exchange.finish_local();
  if (parts_.watch.any_written()) parts_.parameters.take_over(parts_.watch.written());
  const auto norm = strategy_.update({.used = used,
                                      .correction = parts_.window.own_scale(),
                                      .max_norm = parts_.max_gradient_norm,
                                      .scaler = parts_.scaler,
                                      .max_value = parts_.max_gradient_value,
                                      .in_step = parameters_in_step_});
  if (norm) {
    parts_.in_flight.read(*norm, [this, batch = parts_.window.rounds_begun()](std::span<const double> value) {
      parts_.non_finite.see_norm(value.front(), batch);
    });
  }
  parts_.parameters.refresh_copies();
  if (parts_.scaling_report) parts_.scaling_report->after_update(parts_.window.rounds_begun());
  parts_.watch.note(/*look_closer=*/false);
  parts_.exchange.end_window();
  if (!last) return;
  const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kStepLrSchedulers);
  parts_.optimizer.advance_schedule();
  parts_.window.close();
}

LocalMode::LocalMode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed)
    : parts_(parts),
      steps_between_meetings_(options.inner_steps),
      vote_(parts.run, parts.non_finite),
      step_(parts, LocalUpdate::Parts::kAll),
      local_steps_(options, parts.parameters, parts.fusion.plan(), parts.run.device_communicator, parts.run.recorder,
                   seed) {}

// The lag is a quarter of the rounds between two meetings, and at most 16 rounds.
std::int64_t LocalMode::lag() const {
  const std::int64_t quarter = std::int64_t{steps_between_meetings_} * parts_.window.length() / 4;
  return std::clamp<std::int64_t>(quarter, 1, 16);
}

void LocalMode::step() {
  step_.take();
  ++inner_steps_;
}

bool LocalMode::end_batch() {
  const bool stepping = parts_.window.full();
  if (stepping) step();
  parts_.in_flight.end_batch();
  vote_.collect(static_cast<std::size_t>(lag()));
  if (stepping && inner_steps_ >= steps_between_meetings_) synchronise();
  return stepping;
}

bool LocalMode::flush() {
  vote_.collect();
  const bool left = parts_.window.rounds() > 0;
  if (left) step();
  synchronise();
  return left;
}

void LocalMode::visit(StateVisitor& visitor) {
  visitor.number("inner_steps", inner_steps_);
  visitor.part("period", vote_);
  visitor.part("meetings", local_steps_);
}

void LocalMode::synchronise() {
  if (inner_steps_ == 0) return;
  vote_.collect();
  if (vote_.ranks_with_batches() > 0) local_steps_.meet(vote_.ranks_with_batches());
  inner_steps_ = 0;
  // The batches of an open window go into a step after this meeting, and count for the next one.
  vote_.begin_period(parts_.window.own_batches() > 0);
}

AloneMode::AloneMode(const StepParts& parts, bool sharded)
    : parts_(parts),
      vote_(parts.non_finite),
      step_(parts, sharded ? LocalUpdate::Parts::kOfThisRank : LocalUpdate::Parts::kAll) {}

bool AloneMode::end_batch() {
  const bool stepping = parts_.window.full();
  if (stepping) step_.take();
  parts_.in_flight.end_batch();
  return stepping;
}

bool AloneMode::flush() {
  if (parts_.window.rounds() == 0) return false;
  step_.take();
  return true;
}

}  // namespace dtrain::train
