#include "step/virtual_mode.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "dtrain/base/error.h"
#include "exchange/strategy_picker.h"
#include "step/logical_gradients.h"
#include "step/round_vote.h"

namespace dtrain::train {
namespace {

constexpr std::int64_t kStepsWatchedClosely = 2;
constexpr const char* kWithoutVirtualRanks = "leave reproducibility.virtual_ranks out";

// Compression is part of the sums of logical ranks.
StrategyOptions without_compression(StrategyOptions options) {
  options.compression = comm::NoCompression();
  return options;
}

class VirtualMode final : public StepMode {
 public:
  VirtualMode(const StepParts& parts, const ExchangeParts& more, const rank::LogicalRanks& ranks,
              const StrategyOptions& options)
      : parts_(parts),
        more_(more),
        ranks_end_(ranks.end),
        vote_(parts.run, parts.non_finite),
        scale_(parts.run.communicator, parts.window, vote_, /*on_host=*/true, /*scaler=*/nullptr),
        picker_(parts.run, parts.parameters, parts.optimizer, parts.exchange, parts.fusion, scale_, parts.in_flight,
                without_compression(options), more.is_settled),
        gradients_(make_logical_gradients(
            {parts.run, parts.parameters, parts.window, parts.fusion.plan(), ranks, parts.fusion.settled_steps()},
            options)),
        used_(parts.parameters.parameters().size()) {
    watch_values();
  }

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  std::string why_not_capturable() const override { return "of virtual ranks"; }

  void begin_batch() override {
    picker_.begin_batch();
    if (parts_.window.rounds() == 1) std::fill(used_.begin(), used_.end(), 0);
  }
  void begin_logical_rank(int logical_rank) override {
    const bool in_backward = is_exchanged_in_backward(logical_rank);
    if (in_backward) parts_.exchange.use(*gradients_->in_backward(), parts_.fusion.plan());
    parts_.exchange.begin_batch(in_backward);
  }

  void end_logical_rank(int logical_rank) override {
    parts_.watch.check();
    if (parts_.window.own_weight()) {
      throw ConfigError("context.backward(loss, weight) is not supported yet with virtual ranks", kWithoutVirtualRanks);
    }
    refuse_writes();
    const bool in_backward = is_exchanged_in_backward(logical_rank);
    // Behind finish() other ranks may update parameters that this rank shares with them.
    const auto used = in_backward ? parts_.exchange.finish({.used_before = used_}) : parts_.exchange.finish_local();
    for (std::size_t i = 0; i < used.size(); ++i) used_[i] |= used[i];
    if (!in_backward) {
      const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kAllreduceWait);
      gradients_->add(logical_rank);
    }
    parts_.exchange.end_window();
  }

  void step_models() override {
    throw ConfigError("several models are not supported yet with virtual ranks", kWithoutVirtualRanks);
  }
  void abandon_batch() override {
    throw ConfigError("gradients are dropped without a step, which is not supported with virtual ranks",
                      kWithoutVirtualRanks);
  }

  bool end_batch() override {
    {
      const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kAllreduceWait);
      gradients_->end_round();
    }
    const bool stepping = parts_.window.full();
    if (stepping) {
      step();
      tune_fusion();
    }
    parts_.in_flight.end_batch();
    picker_.end_batch(stepping, parts_.window.rounds_begun());
    return stepping;
  }

  bool flush() override {
    vote_.collect();
    if (parts_.window.rounds() == 0) return false;
    step();
    return true;
  }

  void parameters_moved() override { watch_values(); }
  void begin_visit(const StateVisitor& visitor) override {
    vote_.collect();
    if (visitor.needs_whole()) picker_.strategy().begin_visit();
  }
  void end_visit(const StateVisitor& visitor) override {
    if (visitor.needs_whole()) picker_.strategy().end_visit(visitor.replaces());
    if (!visitor.replaces()) return;
    watched_steps_ = 0;
    watch_values();
  }
  std::vector<at::Tensor> gather_state(std::size_t index) override { return picker_.strategy().gather_state(index); }
  void visit(StateVisitor& visitor) override {
    if (parts_.window.rounds() == 0) return;
    if (!visitor.replaces()) agree_on_used();
    const auto parameters = parts_.parameters.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) visitor.number("used/" + parameters[i].name, used_[i]);
    gradients_->visit(visitor);
  }
  void visit_logical_rank(std::size_t index, StateVisitor& visitor) override {
    gradients_->visit_logical_rank(index, visitor);
  }
  void report() override { gradients_->report(); }

 private:
  bool is_exchanged_in_backward(int logical_rank) const {
    return logical_rank + 1 == ranks_end_ && gradients_->in_backward();
  }

  // The buckets do not matter for the sums.
  void tune_fusion() {
    if (!gradients_->in_backward() || !parts_.fusion.end_step(parts_.exchange, parts_.in_flight, /*as_usual=*/true)) {
      return;
    }
    gradients_->set_plan(parts_.fusion.plan());
    picker_.use_new_plan();
  }

  void refuse_writes() const {
    if (!parts_.watch.any_written()) return;
    const std::vector<std::uint8_t> written = parts_.watch.written();
    const auto index = static_cast<std::size_t>(std::find(written.begin(), written.end(), 1) - written.begin());
    throw ConfigError("the model writes its parameter '" + parts_.parameters.parameters()[index].name +
                          "' itself, which is not supported yet with virtual ranks",
                      kWithoutVirtualRanks);
  }

  // Takes the present values as known. The first steps also show writes through .data(), at some cost.
  void watch_values() { parts_.watch.note(/*look_closer=*/watched_steps_++ < kStepsWatchedClosely); }

  // Makes used_ tell which parameters any logical rank has used. Collective.
  void agree_on_used() {
    const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kAllreduceWait);
    parts_.run.communicator.all_reduce(used_.data(), used_.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax})
        .wait();
  }

  void step() {
    const at::NoGradGuard no_grad;
    if (!gradients_->in_backward()) agree_on_used();  // else the exchange of the last logical rank has done it
    double factor = 1;
    {
      const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kAllreduceWait);
      factor = gradients_->finish(used_);
    }
    vote_.collect();
    if (more_.before_update) more_.before_update();
    const auto norm = picker_.strategy().update({.used = used_,
                                                 .correction = factor,
                                                 .max_norm = parts_.max_gradient_norm,
                                                 .max_value = parts_.max_gradient_value});
    parts_.parameters.refresh_copies();
    if (norm) {
      parts_.in_flight.read(*norm, [this, batch = parts_.window.rounds_begun()](std::span<const double> value) {
        more_.gradient_norms.add(batch, value.front());
        parts_.non_finite.see_norm(value.front(), batch);
      });
    }
    watch_values();
    parts_.window.close();
    vote_.begin_period();
    const profile::PhaseScope phase(parts_.run.recorder, profile::Phase::kStepLrSchedulers);
    parts_.optimizer.advance_schedule();
  }

  const StepParts parts_;
  const ExchangeParts more_;
  const int ranks_end_;  // behind the last logical rank of this rank
  CollectiveVote vote_;
  ExchangeScale scale_;    // of the picker's exchanges, of which this mode has none
  StrategyPicker picker_;  // replicated and sharded updates give the same bits
  std::unique_ptr<LogicalGradients> gradients_;
  std::vector<std::uint8_t> used_;  // for each parameter: 1 if a logical rank has used it in this window
  std::int64_t watched_steps_ = 0;  // since the values came from elsewhere (the beginning, a checkpoint)
};

}  // namespace

std::unique_ptr<StepMode> make_virtual_mode(const StepParts& parts, const ExchangeParts& more,
                                            const rank::LogicalRanks& ranks, const StrategyOptions& options) {
  return std::make_unique<VirtualMode>(parts, more, ranks, options);
}

}  // namespace dtrain::train
