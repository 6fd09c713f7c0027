#include "step/local_mode.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "exchange/local_steps.h"

namespace dtrain::train {
namespace {

[[noreturn]] void refuse_to_abandon(const char* with) {
  throw ConfigError(
      std::string("the gradients of a backward() are dropped without a step, which is not supported with ") + with,
      "decide before backward() whether the batch is trained on");
}

// An optimizer step on this rank's own gradients: no rank waits for another.
class LocalStep {
 public:
  // `updated`: which parameters this rank updates.
  LocalStep(const StepParts& parts, LocalUpdate::Parts updated)
      : parts_(parts),
        strategy_(parts.parameters, parts.optimizer, parts.run.device_communicator, parts.run.recorder, updated) {
    strategy_.set_plan(parts_.fusion.plan());
    parts_.exchange.use(strategy_, parts_.fusion.plan());
    parts_.watch.note(/*look_closer=*/false);
  }

  // Steps with the gradients of the open window. `last`: the step is the window's last, and ends it.
  void take(bool last = true) {
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

  // As StepMode::step_models().
  void step_models() {
    take(/*last=*/false);
    parts_.parameters.mark_changed(parameters_in_step_);
    parts_.watch.note(/*look_closer=*/false);
    parts_.exchange.begin_batch(/*exchange=*/false);
  }

 private:
  const StepParts parts_;
  LocalUpdate strategy_;
  std::vector<std::uint8_t> parameters_in_step_;  // set with several models
};

// Local steps: after `inner_steps` steps of its own a rank meets the others.
//
// Ranks read announcements some rounds late, when they have long arrived, so that none waits between two meetings. All
// ranks act on a wish to stop that many rounds late, in the same round.
class LocalMode final : public StepMode {
 public:
  LocalMode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed)
      : parts_(parts),
        steps_between_meetings_(options.inner_steps),
        vote_(parts.run, parts.non_finite),
        step_(parts, LocalUpdate::Parts::kAll),
        local_steps_(options, parts.parameters, parts.fusion.plan(), parts.run.device_communicator, parts.run.recorder,
                     seed) {}

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return lag() + 1; }
  std::string why_not_capturable() const override { return "with local_sgd ranks step by themselves"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  void step_models() override { step_.step_models(); }

  bool end_batch() override {
    const bool stepping = parts_.window.full();
    if (stepping) step();
    parts_.in_flight.end_batch();
    vote_.collect(static_cast<std::size_t>(lag()));
    if (stepping && inner_steps_ >= steps_between_meetings_) synchronise();
    return stepping;
  }

  bool flush() override {
    vote_.collect();
    const bool left = parts_.window.rounds() > 0;
    if (left) step();
    synchronise();
    return left;
  }

  void abandon_batch() override { refuse_to_abandon("local_sgd"); }
  void synchronise() override {
    if (inner_steps_ == 0) return;
    vote_.collect();
    if (vote_.ranks_with_batches() > 0) local_steps_.meet(vote_.ranks_with_batches());
    inner_steps_ = 0;
    // The batches of an open window go into a step after this meeting, and count for the next one.
    vote_.begin_period(parts_.window.own_batches() > 0);
  }

  bool synchronised() const override { return inner_steps_ == 0; }
  bool stop_is_due() override { return vote_.stop_is_old(lag()); }
  // Reads the announcements first: they tell which ranks have had batches, and which values were not finite.
  void begin_visit(const StateVisitor& /*visitor*/) override { vote_.collect(); }
  void visit(StateVisitor& visitor) override {
    visitor.number("inner_steps", inner_steps_);
    visitor.part("period", vote_);
    visitor.part("meetings", local_steps_);
  }

  bool state_is_shared() const override { return false; }
  void report() override { local_steps_.report(parts_.run); }

 private:
  // The lag in rounds: a quarter of the rounds between two meetings, and at most 16.
  std::int64_t lag() const {
    const std::int64_t quarter = std::int64_t{steps_between_meetings_} * parts_.window.length() / 4;
    return std::clamp<std::int64_t>(quarter, 1, 16);
  }

  void step() {
    step_.take();
    ++inner_steps_;
  }

  const StepParts parts_;
  const int steps_between_meetings_;
  CollectiveVote vote_;
  LocalStep step_;
  LocalSteps local_steps_;
  int inner_steps_ = 0;  // since the ranks last met
};

// `--mock comm`: a rank computes its part of each update, and exchanges nothing. Its parameters are neither those of
// another rank nor the result of real training.
class AloneMode final : public StepMode {
 public:
  AloneMode(const StepParts& parts, bool sharded)
      : parts_(parts),
        vote_(parts.non_finite),
        step_(parts, sharded ? LocalUpdate::Parts::kOfThisRank : LocalUpdate::Parts::kAll) {}

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  std::string why_not_capturable() const override { return "the run is a mock run"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  void step_models() override { step_.step_models(); }

  bool end_batch() override {
    const bool stepping = parts_.window.full();
    if (stepping) step_.take();
    parts_.in_flight.end_batch();
    return stepping;
  }

  void abandon_batch() override { refuse_to_abandon("a mock run"); }
  bool flush() override {
    if (parts_.window.rounds() == 0) return false;
    step_.take();
    return true;
  }

  bool state_is_shared() const override { return false; }

 private:
  const StepParts parts_;
  AloneVote vote_;
  LocalStep step_;
};

}  // namespace

std::unique_ptr<StepMode> make_local_mode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed) {
  return std::make_unique<LocalMode>(parts, options, seed);
}

std::unique_ptr<StepMode> make_alone_mode(const StepParts& parts, bool sharded) {
  return std::make_unique<AloneMode>(parts, sharded);
}

}  // namespace dtrain::train
