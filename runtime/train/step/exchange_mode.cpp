#include "step/exchange_mode.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "step/round_vote.h"

namespace dtrain::train {
namespace {

// Writes through .data() show in the values alone. Values are compared in this many steps: more would cost too much.
constexpr std::int64_t kStepsWithDigests = 2;
constexpr std::int64_t kHasWritten = -1;  // in the state, in place of the number of steps that were watched
// After this many steps that used the same parameters, all later steps are assumed to use them too.
constexpr std::int64_t kStepsAlike = 3;
// In this many windows the ranks compare which models they step, before they exchange anything.
constexpr std::int64_t kComparedWindows = 3;

}  // namespace

std::vector<std::uint8_t> WrittenParameters::mine() const {
  if (!watch_.any_written()) return {};
  return watch_.written();
}

std::vector<std::size_t> WrittenParameters::agree(std::vector<std::uint8_t> mine) const {
  mine.resize(parameters_.parameters().size());
  run_.communicator.all_reduce(mine.data(), mine.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax}).wait();
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i]) written.push_back(i);
  }
  return written;
}

void WrittenParameters::make_alike(std::span<const std::size_t> parameters) {
  const auto all = parameters_.parameters();
  std::vector<std::int64_t> extremes;  // the digests and their complements: largest and smallest of all ranks
  for (const std::size_t index : parameters) {
    extremes.push_back(static_cast<std::int64_t>(digest_of(parameters_.values_of(all[index]))));
    extremes.push_back(~extremes.back());
  }
  run_.communicator.all_reduce(extremes.data(), extremes.size(), comm::DataType::kInt64, {.op = comm::ReduceOp::kMax})
      .wait();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    const auto& parameter = all[parameters[i]];
    const at::Tensor values = parameters_.values_of(parameter);
    run_.device_communicator.broadcast(FlatMemory::address(values), values.nbytes(), comm::DataType::kUint8, 0).wait();
    parameters_.refresh();
    if (std::exchange(warned_, true) || !run_.is_first_rank()) continue;
    run_.log->warn(
        "the model writes its parameter '{}' itself, other values on other ranks: rank 0's count, and all ranks have "
        "them "
        "after each optimizer step",
        parameter.name);
  }
}

namespace {

class ExchangeMode final : public StepMode, private CapturableStep {
 public:
  ExchangeMode(const StepParts& parts, const ExchangeParts& more, const StrategyOptions& options)
      : parts_(parts),
        more_(more),
        vote_(parts.run, parts.non_finite),
        scale_(parts.run.communicator, parts.window, vote_, parts.parameters.memory().on_host(), parts.scaler),
        picker_(parts.run, parts.parameters, parts.optimizer, parts.exchange, parts.fusion, scale_, parts.in_flight,
                options, more.is_settled),
        written_(parts.run, parts.parameters, parts.watch) {
    if (!more_.values_follow) parts_.watch.note(digests_due());
    parts_.exchange.mark_on_device(parts_.fusion.device_times());
  }

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  CapturableStep* capturable() override { return why_not_capturable().empty() ? this : nullptr; }
  // A codec chooses on the host the data of each step. The rounds of a longer window give the device different work.
  std::string why_not_capturable() const override {
    if (picker_.is_compressed()) return "of gradient_compression";
    if (parts_.models.several()) return "the trial has several models";
    if (parts_.window.length() > 1) return "aggregation_frequency is " + std::to_string(parts_.window.length());
    return "";
  }

  void begin_batch() override {
    picker_.begin_batch();
    parts_.exchange.begin_batch(/*exchange=*/parts_.window.full());
    if (!parts_.models.several() || !parts_.window.full()) return;
    // A rank without a batch follows the other ranks from one step to the next.
    vote_.collect();
    const std::int64_t full = std::int64_t{parts_.window.length()} * parts_.run.world.size;
    ranks_may_differ_ = windows_begun_++ < kComparedWindows || vote_.batches() < full;
    if (ranks_may_differ_) parts_.exchange.hold_buckets();
  }

  void choose_models() override {
    // A compressor counts its exchanges, and expects all buckets in each.
    if (!picker_.is_compressed()) parts_.exchange.choose_models(parts_.models.waiting());
  }

  void step_models() override {
    if (!agree_on_models()) return;
    exchange_and_update();
    parts_.parameters.mark_changed(parameters_in_step_);
    parts_.watch.note(digests_due());
    parts_.exchange.begin_batch(/*exchange=*/true);
    if (ranks_may_differ_) parts_.exchange.hold_buckets();
  }

  bool end_batch() override {
    const bool stepping = parts_.window.full();
    if (stepping) parts_.models.several() ? take_last_steps() : step();
    parts_.in_flight.end_batch();
    picker_.end_batch(stepping, parts_.window.rounds_begun());
    return stepping;
  }

  // Finishes the exchange of all buckets, because it shows if the ranks treat the gradients differently.
  void abandon_batch() override {
    if (picker_.is_compressed() || parts_.window.length() > 1) {
      throw ConfigError(
          std::string("the gradients of a backward() are dropped without a step, which is not supported with ") +
              (picker_.is_compressed() ? "gradient_compression" : "aggregation_frequency above 1"),
          "decide before backward() whether the batch is trained on, or leave the option out");
    }
    parts_.exchange.finish({.dropped = true});
    parts_.exchange.abandon_window();
    vote_.collect();
    vote_.begin_period();
    parts_.window.abandon_round();
    parts_.in_flight.end_batch();
    picker_.end_batch(/*stepped=*/false, parts_.window.rounds_begun());
  }

  bool flush() override {
    vote_.collect();
    if (parts_.window.rounds() == 0 || vote_.batches() == 0) return false;
    parts_.exchange.begin_batch(/*exchange=*/true);
    ranks_may_differ_ = true;
    parts_.models.several() ? take_last_steps() : step();
    return true;
  }

  void parameters_moved() override { parts_.watch.note(digests_due()); }
  void begin_visit(const StateVisitor& visitor) override {
    vote_.collect();
    if (visitor.needs_whole()) picker_.strategy().begin_visit();
  }

  void end_visit(const StateVisitor& visitor) override {
    if (visitor.needs_whole()) picker_.strategy().end_visit(visitor.replaces());
    if (!visitor.replaces()) return;
    // The values are new: the watch begins again, unless earlier ranks of the program have ended it without a write.
    const bool is_known = more_.same_program && watched_before_ > kStepsWithDigests;
    watched_steps_ = is_known ? kStepsWithDigests + 1 : 0;
    parts_.watch.note(digests_due());
  }

  std::vector<at::Tensor> gather_state(std::size_t index) override { return picker_.strategy().gather_state(index); }
  // A model that writes its parameters does so before the next update. The first steps show if it writes them.
  std::optional<std::vector<FlatRange>> copied_ranges() const override {
    // Several updates of one batch would copy values from between them.
    if (parts_.models.several()) return std::nullopt;
    // An update may not copy values that the model writes over before the next update. Between two updates, as on a
    // device, the values are the same on all ranks.
    const bool may_write = writes_seen_ || watched_steps_ <= kStepsWithDigests;
    if (may_write && parts_.parameters.memory().on_host()) return std::nullopt;
    return picker_.strategy().copied_ranges();
  }

  std::optional<std::vector<FlatRange>> divided_state() const override { return picker_.strategy().divided_state(); }

  bool has_all() const override {
    return picker_.strategy().every_rank_has_all() && parts_.parameters.memory().on_host() && copied_ranges() &&
           !parts_.watch.any_written();
  }

  void visit(StateVisitor& visitor) override {
    visitor.part("period", vote_);
    visitor.part("strategy", picker_.strategy());
    // The same at each batch, however often the run has gone on from a checkpoint meanwhile.
    std::int64_t watched =
        wrote_before_ || writes_seen_ ? kHasWritten : std::min(watched_before_ + watched_steps_, kStepsWithDigests + 1);
    visitor.number("watched", watched);
    if (!visitor.replaces()) return;
    wrote_before_ = watched == kHasWritten;
    watched_before_ = std::max<std::int64_t>(watched, 0);
  }

  void report() override { picker_.strategy().report(parts_.run); }

 private:
  bool settled() override {
    return more_.is_settled() && picker_.settled() && !parts_.fusion.settling() && watched_steps_ > kStepsWithDigests &&
           parts_.exchange.windows_alike() >= kStepsAlike && !parts_.watch.any_written();
  }

  void begin_capture() override { parts_.exchange.begin_batch(/*exchange=*/true); }

  void end_capture() override {
    parts_.watch.check();
    if (parts_.watch.any_written()) throw Error("the model writes its parameters itself");
    const auto used = parts_.exchange.finish_captured();
    captured_used_.assign(used.begin(), used.end());
    captured_norm_ = picker_.strategy().update(update_of(captured_used_, scale_.correction_of_full_window()));
    parts_.parameters.refresh_copies();
    parts_.exchange.end_window();
  }

  void abandon_capture() override {
    parts_.exchange.abandon_window();
    captured_used_.clear();
    captured_norm_.reset();
  }

  bool is_as_captured() const override { return parts_.exchange.last_used(captured_used_); }
  void before_replay() override { before_update(); }

  void after_replay() override {
    parts_.optimizer.count_updates(captured_used_);
    parts_.optimizer.advance_schedule();
    read_late(captured_norm_);
    parts_.window.close();
    vote_.begin_period();
    parts_.in_flight.end_batch();
  }

  // The order matters. The exchange carries the flag that a model has written parameters, and an update that may not
  // follow such a write is refused before it happens. After the update all ranks have all parameters: only then may the
  // strategy change, may values be made alike, and may buckets be cut anew.
  void step() {
    exchange_and_update();
    end_window();
    if (parts_.fusion.end_step(parts_.exchange, parts_.in_flight, picker_.strategy().exchanged_as_usual())) {
      picker_.use_new_plan();
    }
    parts_.exchange.mark_on_device(parts_.fusion.device_times());
  }

  // Does one exchange and one update with the window's gradients.
  void exchange_and_update() {
    parts_.watch.check();
    std::vector<std::uint8_t> mine = written_.mine();
    const auto used =
        parts_.exchange.finish({.wrote = !mine.empty(), .weighted = parts_.window.own_weight().has_value()});
    if (parts_.exchange.dropped_by_any()) {
      throw Error(
          "another rank has dropped the gradients of this batch (zero_grad() after backward()), and this rank takes a "
          "step",
          "decide by a value that is the same on all ranks, such as session.mean(loss)");
    }
    std::vector<std::size_t> written;
    if (parts_.exchange.any_wrote()) {
      written = written_.agree(std::move(mine));
      if (!written.empty()) {
        picker_.check_write(parts_.parameters.parameters()[written.front()].name);
        for (const std::size_t index : written) parts_.parameters.take_over(index);
        parts_.optimizer.spoil_copy();
      }
    }
    update(used);
    parts_.exchange.end_window();
    look_at_writes(written);
  }

  // With several models: takes the steps that are left when the batch ends.
  void take_last_steps() {
    while (agree_on_models()) {
      exchange_and_update();
      parts_.exchange.begin_batch(/*exchange=*/true);
      parts_.exchange.hold_buckets();
    }
    parts_.exchange.abandon_window();
    end_window();
  }

  // Finds the models that the next step updates: those that wait on this rank or, while ranks may differ, on any rank.
  // Returns false if there are none. Collective while ranks may differ.
  bool agree_on_models() {
    StepModels& models = parts_.models;
    const auto mine = models.waiting();
    models_in_step_.assign(mine.begin(), mine.end());
    if (ranks_may_differ_) {
      const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kAllreduceWait);
      parts_.run.communicator
          .all_reduce(models_in_step_.data(), models_in_step_.size(), comm::DataType::kUint8,
                      {.op = comm::ReduceOp::kMax})
          .wait();
      if (models.has_batch() && !std::equal(mine.begin(), mine.end(), models_in_step_.begin())) {
        std::vector<std::uint8_t> others(models_in_step_);
        for (std::size_t i = 0; i < others.size(); ++i) others[i] = others[i] && !mine[i] ? 1 : 0;
        throw Error("another rank takes an optimizer step of " + models.text(others) + ", and this rank " +
                        (models.any_waiting() ? "one of " + models.text(mine) + " alone" : "has ended its batch"),
                    "call context.backward() and context.step() for the same models in every batch of all ranks");
      }
    }
    models.stepped();
    if (std::find(models_in_step_.begin(), models_in_step_.end(), 1) == models_in_step_.end()) return false;
    const auto all = parts_.parameters.parameters();
    parameters_in_step_.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) parameters_in_step_[i] = models_in_step_[all[i].model];
    if (!picker_.is_compressed()) parts_.exchange.choose_models(models_in_step_);
    return true;
  }

  void end_window() {
    parts_.window.close();
    vote_.begin_period();
    const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kStepLrSchedulers);
    parts_.optimizer.advance_schedule();
  }

  void update(std::span<const std::uint8_t> used) {
    before_update();
    const auto norm = picker_.strategy().update(update_of(used, correction()));
    parts_.parameters.refresh_copies();
    read_late(norm);
  }

  void before_update() {
    vote_.collect();
    if (more_.before_update) more_.before_update();
  }

  Update update_of(std::span<const std::uint8_t> used, double correction) const {
    return {.used = used,
            .correction = correction,
            .max_norm = parts_.max_gradient_norm,
            .scaler = parts_.scaler,
            .max_value = parts_.max_gradient_value,
            .in_step = parameters_in_step_};
  }

  // Returns the factor of the window's gradients, on top of the factor that their exchange applied. Collective.
  double correction() {
    if (!parts_.exchange.weighted_by_any()) return scale_.correction();
    if (picker_.is_compressed()) {
      throw ConfigError("context.backward(loss, weight) is not supported with gradient_compression",
                        "a compressor needs the weight of all batches before backward has ended; turn compression off");
    }
    return scale_.correction_of_weights();
  }

  // Passes on the values of an update that the host reads once the device has done it. `norm`: of clipped gradients.
  void read_late(const std::optional<at::Tensor>& norm) {
    if (parts_.scaling_report) parts_.scaling_report->after_update(parts_.window.rounds_begun());
    if (!norm) return;
    parts_.in_flight.read(*norm, [this, batch = parts_.window.rounds_begun()](std::span<const double> value) {
      more_.gradient_norms.add(batch, value.front());
      parts_.non_finite.see_norm(value.front(), batch);
    });
  }

  bool digests_due() const {
    return (picker_.may_shard() || parts_.parameters.memory().on_host()) && watched_steps_ < kStepsWithDigests;
  }

  void look_at_writes(const std::vector<std::size_t>& written) {
    ++watched_steps_;
    writes_seen_ |= !written.empty();
    if (!written.empty()) {
      picker_.stop_sharding(parts_.parameters.parameters()[written.front()].name);
      written_.make_alike(written);
    }
    if (!written.empty() || watched_steps_ <= kStepsWithDigests) parts_.watch.note(digests_due());
  }

  const StepParts parts_;
  const ExchangeParts more_;
  CollectiveVote vote_;
  ExchangeScale scale_;
  StrategyPicker picker_;
  WrittenParameters written_;
  std::vector<std::uint8_t> models_in_step_;      // set with several models
  std::vector<std::uint8_t> parameters_in_step_;  // for each parameter: 1 if its model is in the step
  bool ranks_may_differ_ = false;                 // they may step different models, or some have no batch
  std::int64_t windows_begun_ = 0;                // counted with several models
  bool writes_seen_ = false;                      // the model has written parameters itself
  std::vector<std::uint8_t> captured_used_;       // parameters that the captured step used
  std::optional<at::Tensor> captured_norm_;
  std::int64_t watched_steps_ = 0;   // since the values came from elsewhere (the beginning, a checkpoint)
  std::int64_t watched_before_ = 0;  // the same of the ranks whose state was restored, at most one more than needed
  bool wrote_before_ = false;        // their model has written parameters itself
};

}  // namespace

std::unique_ptr<StepMode> make_exchange_mode(const StepParts& parts, const ExchangeParts& more,
                                             const StrategyOptions& options) {
  return std::make_unique<ExchangeMode>(parts, more, options);
}

}  // namespace dtrain::train
