// Turns a wrapped model into one optimizer step after another. runtime/train/README.md follows a step on its way
// through the parts; the StepMode decides how the parts make an update. Used by the training thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/steps_in_flight.h"
#include "dtrain/train/trial.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/logical_buffers.h"
#include "model/precision.h"
#include "run_services.h"
#include "state_visitor.h"
#include "step/aggregation_window.h"
#include "step/memory_format.h"
#include "step/stability.h"
#include "step/step_mode.h"
#include "step/step_options.h"

namespace dtrain::train {

class TrainingStep : private CapturableStep {
 public:
  // Compares the models, broadcasts rank 0's values, allocates the gradients. ConfigError. Collective.
  TrainingStep(const TrialContext::Wrapped& wrapped, const RunServices& run, const StepOptions& options);
  TrainingStep& operator=(TrainingStep&&) = delete;

  // To be called in every round before the batch: announces it to the other ranks, with `mine`, whose batches, rates
  // and place are filled in here. Never waits. `place`: Batch::place of the batch. If places or learning rates differ,
  // all ranks throw the same error when they read the round.
  void announce(bool has_batch, Announcement mine, std::int64_t place = -1);
  // Waits for the announcements of all ranks for the last announced round.
  Round agree() { return mode_->vote().agree(); }

  // Returns the step as a CUDA graph, or null if that is not possible. As StepMode::capturable(), but for the whole
  // step: train_batch() comes between begin_capture() and end_capture().
  CapturableStep* capturable() { return mode_->capturable() ? this : nullptr; }
  std::string why_not_capturable() const { return mode_->why_not_capturable(); }

  // Called before train_batch() (or instead of it, on a rank without a batch).
  void begin_batch();
  // For a program that has the loop itself: called before the forward pass of a batch that it may train. begin_batch()
  // follows before backward(), or leave_forward() follows if the program does not train the batch.
  void begin_forward();
  void leave_forward();
  // With virtual ranks, called around the batch of each logical rank of this rank (or instead of it, if it has none),
  // in their order, between begin_batch() and end_batch(). The model has the logical rank's buffers in between, and
  // otherwise those of this rank's first one.
  void begin_logical_rank(int logical_rank);
  void end_logical_rank(int logical_rank);
  // The buffers of the logical ranks; null: each rank is one logical rank.
  LogicalBuffers* logical_buffers() { return buffers_ ? &*buffers_ : nullptr; }
  // Visits the training state of the logical rank of this number among those of this rank, after visit().
  void visit_logical_rank(std::size_t index, StateVisitor& visitor) {
    buffers_->visit(index, visitor);
    mode_->visit_logical_rank(index, visitor);
  }
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  // Called within train_batch(), after backward(): as TrialContext::step(). Collective.
  void step_models();
  // Ends the round: exchanges and steps if a step is due. Returns true after an optimizer step.
  bool end_batch();
  // Called instead of end_batch(), after a backward(): as StepMode::abandon_batch(). Collective.
  void abandon_batch();
  // Exchanges and applies the gradients of an unfinished window, with its real number of batches. Returns true if there
  // was such a window.
  bool flush();
  // True if flush() has work: gradients that no update has applied, or local steps since the last meeting. The same on
  // all ranks.
  bool window_is_open() const { return window_.rounds() > 0 || !mode_->synchronised(); }
  // Throws Error that names a parameter which training does not know. To be called from time to time.
  void check_members() const { watch_.check_members(); }

  // With local steps: makes the ranks meet if they have stepped since the last meeting. Collective.
  void synchronise() { mode_->synchronise(); }
  // True if all ranks had the same parameters after the last round: always, except between the meetings of local steps.
  bool synchronised() const { return mode_->synchronised(); }
  // After an optimizer step: true if training ends here because a rank was asked to stop. The same on all ranks.
  bool stop_is_due() { return mode_->stop_is_due(); }
  // After an optimizer step, the same on all ranks: true if a rank has announced that its host's saver is busy, and
  // true if a rank has asked for a checkpoint.
  bool saver_busy() { return mode_->vote().saver_busy(); }
  bool checkpoint_wanted() { return mode_->vote().checkpoint_wanted(); }
  // The same of the states in memory.
  bool generation_busy() { return mode_->vote().generation_busy(); }
  bool generation_wanted() { return mode_->vote().generation_wanted(); }

  // The most rounds, the announcing one included, after which all ranks know an announcement.
  std::int64_t announcement_rounds() const { return mode_->announcement_rounds(); }
  // Returns the trace window that rank 0 announced, once.
  std::optional<profile::TraceWindow> take_trace_window() { return mode_->vote().take_trace_window(); }

  // Rank 0: updates plan.json with losses that were not finite and the scale of the loss.
  void write_reports();
  // Called when training is over: writes the mode's results, and losses and norms that were not finite. Collective.
  void report();

  // Visits the training state, between two batches. Parameters and optimizer state are complete, and the same on every
  // rank unless ranks step by themselves (state_is_shared()). Other entries may differ between ranks: buffers of the
  // model, error feedback, the gradients of an open window. Collective.
  void visit(StateVisitor& visitor);
  // `call` is called before each update, when all ranks know the announcements for its last batch.
  void before_update(std::function<void()> call) { before_update_ = std::move(call); }
  // To be called after the state of another run was restored: its values that were not finite are not counted here.
  void forget_non_finite() { non_finite_.forget(); }
  bool state_is_shared() const { return mode_->state_is_shared(); }
  bool has_all() const { return mode_->has_all(); }
  // As StepMode::copied_ranges().
  std::optional<std::vector<FlatRange>> copied_ranges() const { return mode_->copied_ranges(); }
  // As StepMode::divided_state().
  std::optional<std::vector<FlatRange>> divided_state() const { return mode_->divided_state(); }
  // While this object lives, the model's tensors hold the values that training updates, in their type. Between two
  // batches.
  FlatParameters::ValuesInModel values_in_model() {
    take_over_written();
    return FlatParameters::ValuesInModel(parameters_);
  }

  // Returns a copy of the average of the weights (`optimizations.ema`) for values_in_model(); empty: there is none. To
  // be called between two batches. Collective.
  std::vector<at::Tensor> weight_averages();
  std::unique_ptr<FlatParameters::ValuesInModel> values_in_model(const std::vector<at::Tensor>& instead,
                                                                 bool as_computed) {
    return std::make_unique<FlatParameters::ValuesInModel>(parameters_, instead, as_computed);
  }

  // Rounds since training began: the number of the last batch.
  std::int64_t batches_begun() const { return window_.rounds_begun(); }
  // The number of batches that the device is behind, and the values that arrive from it later.
  StepsInFlight& in_flight() { return in_flight_; }

  const FlatParameters& parameters() const { return parameters_; }
  const Fusion& fusion() const { return fusion_; }
  const FlatOptimizer& optimizer() const { return optimizer_; }
  FlatOptimizer& optimizer() { return optimizer_; }
  const GradientNorms& gradient_norms() const { return gradient_norms_; }

 private:
  // Finds writes of the model only where it has copies: while the watch looks closer, it reads all parameters.
  void take_over_written() {
    if (parameters_.computes_with_copies()) parameters_.take_over(watch_.written());
  }
  bool settled() override;
  void begin_capture() override;
  void end_capture() override;
  void abandon_capture() override;
  bool is_as_captured() const override { return mode_->capturable()->is_as_captured(); }
  void before_replay() override;
  void after_replay() override;

  void compute_in_shadow();
  // Throws the error of this difference. Collective.
  void explain(Difference difference);
  // Returns the parameters of these models, which alone get a gradient.
  std::vector<at::Tensor> inputs_of(const std::vector<std::string>& models) const;
  void read_loss(const at::Tensor& loss);
  // Counts the weight of the batch, once where there are several losses.
  void weigh_batch(double weight);
  LossScalingReport* begin_report(const StepOptions& options);  // null: the loss is not scaled

  // Each member depends on those before it. The hooks are destroyed first, because they call the exchange.
  const RunServices run_;
  const std::shared_ptr<torch::nn::Module> model_;
  NonFinite non_finite_;
  GradientNorms gradient_norms_;
  AggregationWindow window_;
  StepModels models_;
  FlatParameters parameters_;
  Fusion fusion_;
  FlatOptimizer optimizer_;
  GradientExchange exchange_;
  StepsInFlight in_flight_;
  MemoryFormat memory_format_;
  std::optional<LossScaler> scaler_;  // set with float16
  std::optional<LossScalingReport> scaling_report_;
  ParameterWatch watch_;
  std::function<void()> before_update_;
  std::unique_ptr<StepMode> mode_;
  GradientHooks hooks_;
  const bool may_keep_narrow_gradients_;
  const rank::LogicalRanks ranks_;
  std::optional<LogicalBuffers> buffers_;  // set with virtual ranks
  std::optional<int> logical_rank_;        // the one that computes, with virtual ranks
  std::int64_t place_ = -1;                // place of the batch that was announced last
  bool in_forward_ = false;
  bool in_batch_ = false;
  bool batch_has_loss_ = false;         // backward() has been called for the batch that has begun
  std::optional<double> batch_weight_;  // weight of the batch that has begun, if it has one
  bool adds_losses_ = false;            // some backward() has been told that more backward() calls follow
  bool capturing_ = false;
  at::Tensor captured_loss_;
  // Set until the first optimizer step, where autocast is on.
  std::optional<NarrowUse> narrow_use_;
  std::optional<NarrowUse::Watching> watching_;
};

}  // namespace dtrain::train
