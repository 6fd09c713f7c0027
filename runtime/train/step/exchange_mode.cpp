#include "step/exchange_mode.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

// Writes through .data() show in the values alone. Values are compared in this many steps: more would cost too much.
constexpr std::int64_t kStepsWithDigests = 2;
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

ExchangeMode::ExchangeMode(const StepParts& parts, const ExchangeParts& more, const StrategyOptions& options)
    : parts_(parts),
      more_(more),
      vote_(parts.run, parts.non_finite),
      scale_(parts.run.communicator, parts.window, vote_, parts.parameters.memory().on_host(), parts.scaler),
      picker_(parts.run, parts.parameters, parts.optimizer, parts.exchange, parts.fusion, scale_, parts.in_flight,
              options, more.is_settled),
      written_(parts.run, parts.parameters, parts.watch) {
  parts_.watch.note(digests_due());
}

void ExchangeMode::begin_batch() {
  picker_.begin_batch();
  parts_.exchange.begin_batch(/*exchange=*/parts_.window.full());
  if (!parts_.models.several() || !parts_.window.full()) return;
  // A rank without a batch follows the other ranks from one step to the next.
  vote_.collect();
  const std::int64_t full = std::int64_t{parts_.window.length()} * parts_.run.world.size;
  ranks_may_differ_ = windows_begun_++ < kComparedWindows || vote_.batches() < full;
  if (ranks_may_differ_) parts_.exchange.hold_buckets();
}

void ExchangeMode::step_models() {
  if (!agree_on_models()) return;
  exchange_and_update();
  parts_.parameters.mark_changed(parameters_in_step_);
  parts_.watch.note(digests_due());
  parts_.exchange.begin_batch(/*exchange=*/true);
  if (ranks_may_differ_) parts_.exchange.hold_buckets();
}

void ExchangeMode::choose_models() {
  // A compressor counts its exchanges, and expects all buckets in each.
  if (!picker_.is_compressed()) parts_.exchange.choose_models(parts_.models.waiting());
}

bool ExchangeMode::end_batch() {
  const bool stepping = parts_.window.full();
  if (stepping) parts_.models.several() ? take_last_steps() : step();
  parts_.in_flight.end_batch();
  picker_.end_batch(stepping, parts_.window.rounds_begun());
  return stepping;
}

// Finishes the exchange of all buckets, because it shows if the ranks treat the gradients differently.
void ExchangeMode::abandon_batch() {
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

bool ExchangeMode::flush() {
  vote_.collect();
  if (parts_.window.rounds() == 0 || vote_.batches() == 0) return false;
  parts_.exchange.begin_batch(/*exchange=*/true);
  ranks_may_differ_ = true;
  parts_.models.several() ? take_last_steps() : step();
  return true;
}

void ExchangeMode::take_last_steps() {
  while (agree_on_models()) {
    exchange_and_update();
    parts_.exchange.begin_batch(/*exchange=*/true);
    parts_.exchange.hold_buckets();
  }
  parts_.exchange.abandon_window();
  end_window();
}

bool ExchangeMode::agree_on_models() {
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

// The order matters. The exchange carries the flag that a model has written parameters, and an update that may not
// follow such a write is refused before it happens. After the update all ranks have all parameters: only then may the
// strategy change, may values be made alike, and may buckets be cut anew.
void ExchangeMode::step() {
  exchange_and_update();
  end_window();
  if (parts_.fusion.end_step(parts_.exchange)) picker_.use_new_plan();
}

void ExchangeMode::exchange_and_update() {
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

void ExchangeMode::end_window() {
  parts_.window.close();
  vote_.begin_period();
  const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kStepLrSchedulers);
  parts_.optimizer.advance_schedule();
}

void ExchangeMode::update(std::span<const std::uint8_t> used) {
  before_update();
  const auto norm = picker_.strategy().update(update_of(used, correction()));
  parts_.parameters.refresh_copies();
  read_late(norm);
}

Update ExchangeMode::update_of(std::span<const std::uint8_t> used, double correction) const {
  return {.used = used,
          .correction = correction,
          .max_norm = parts_.max_gradient_norm,
          .scaler = parts_.scaler,
          .max_value = parts_.max_gradient_value,
          .in_step = parameters_in_step_};
}

double ExchangeMode::correction() {
  if (!parts_.exchange.weighted_by_any()) return scale_.correction();
  if (picker_.is_compressed()) {
    throw ConfigError("context.backward(loss, weight) is not supported with gradient_compression",
                      "a compressor needs the weight of all batches before backward has ended; turn compression off");
  }
  return scale_.correction_of_weights();
}

void ExchangeMode::before_update() {
  vote_.collect();
  if (more_.before_update) more_.before_update();
}

void ExchangeMode::read_late(const std::optional<at::Tensor>& norm) {
  if (parts_.scaling_report) parts_.scaling_report->after_update(parts_.window.rounds_begun());
  if (!norm) return;
  parts_.in_flight.read(*norm, [this, batch = parts_.window.rounds_begun()](std::span<const double> value) {
    more_.gradient_norms.add(batch, value.front());
    parts_.non_finite.see_norm(value.front(), batch);
  });
}

// A codec chooses on the host the data of each step. The rounds of a longer window give the device different work.
std::string ExchangeMode::why_not_capturable() const {
  if (picker_.is_compressed()) return "of gradient_compression";
  if (parts_.models.several()) return "the trial has several models";
  if (parts_.window.length() > 1) return "aggregation_frequency is " + std::to_string(parts_.window.length());
  return "";
}

bool ExchangeMode::settled() {
  return more_.is_settled() && picker_.settled() && !parts_.fusion.settling() && watched_steps_ > kStepsWithDigests &&
         parts_.exchange.windows_alike() >= kStepsAlike && !parts_.watch.any_written();
}

void ExchangeMode::begin_capture() {
  parts_.exchange.begin_batch(/*exchange=*/true);
}

void ExchangeMode::end_capture() {
  parts_.watch.check();
  if (parts_.watch.any_written()) throw Error("the model writes its parameters itself");
  const auto used = parts_.exchange.finish_captured();
  captured_used_.assign(used.begin(), used.end());
  captured_norm_ = picker_.strategy().update(update_of(captured_used_, scale_.correction_of_full_window()));
  parts_.parameters.refresh_copies();
  parts_.exchange.end_window();
}

void ExchangeMode::abandon_capture() {
  parts_.exchange.abandon_window();
  captured_used_.clear();
  captured_norm_.reset();
}

void ExchangeMode::before_replay() {
  before_update();
}

void ExchangeMode::after_replay() {
  parts_.optimizer.count_updates(captured_used_);
  parts_.optimizer.advance_schedule();
  read_late(captured_norm_);
  parts_.window.close();
  vote_.begin_period();
  parts_.in_flight.end_batch();
}

void ExchangeMode::begin_visit(const StateVisitor& visitor) {
  vote_.collect();
  if (visitor.needs_whole()) picker_.strategy().begin_visit();
}

void ExchangeMode::visit(StateVisitor& visitor) {
  visitor.part("period", vote_);
  visitor.part("strategy", picker_.strategy());
}

void ExchangeMode::end_visit(const StateVisitor& visitor) {
  if (visitor.needs_whole()) picker_.strategy().end_visit(visitor.replaces());
  if (!visitor.replaces()) return;
  // The values are new, so nothing is known yet about writes of the model: the watch begins again.
  watched_steps_ = 0;
  parts_.watch.note(digests_due());
}

// A model that writes its parameters does so before the next update. The first steps show if it writes them.
std::optional<std::vector<FlatRange>> ExchangeMode::copied_ranges() const {
  // Several updates of one batch would copy values from between them.
  if (parts_.models.several()) return std::nullopt;
  // An update may not copy values that the model writes over before the next update. Between two updates, as on a
  // device, the values are the same on all ranks.
  const bool may_write = writes_seen_ || watched_steps_ <= kStepsWithDigests;
  if (may_write && parts_.parameters.memory().on_host()) return std::nullopt;
  return picker_.strategy().copied_ranges();
}

bool ExchangeMode::digests_due() const {
  return (picker_.may_shard() || parts_.parameters.memory().on_host()) && watched_steps_ < kStepsWithDigests;
}

void ExchangeMode::look_at_writes(const std::vector<std::size_t>& written) {
  ++watched_steps_;
  writes_seen_ |= !written.empty();
  if (!written.empty()) {
    picker_.stop_sharding(parts_.parameters.parameters()[written.front()].name);
    written_.make_alike(written);
  }
  if (!written.empty() || watched_steps_ <= kStepsWithDigests) parts_.watch.note(digests_due());
}

}  // namespace dtrain::train
