// How a rank's batches become optimizer steps: with an exchange of gradients in every window (ExchangeMode), by itself
// with meetings now and then (LocalMode), or by itself to the end (AloneMode). make_mode() chooses.
//
// TrainingStep calls it, from the training thread. Modes share the parts below and own what is theirs alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/steps_in_flight.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "exchange/run_services.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/parameter_watch.h"
#include "state/state_visitor.h"
#include "step/aggregation_window.h"
#include "step/capturable_step.h"
#include "step/gradient_norms.h"
#include "step/loss_scaling_report.h"
#include "step/non_finite.h"
#include "step/round_vote.h"
#include "step/step_options.h"

namespace dtrain::train {

// What every mode works on. All of it outlives the mode.
struct StepParts {
  const RunServices& run;
  FlatParameters& parameters;
  FlatOptimizer& optimizer;
  ParameterWatch& watch;
  Fusion& fusion;
  GradientExchange& exchange;
  StepsInFlight& in_flight;
  NonFinite& non_finite;
  GradientNorms& gradient_norms;
  AggregationWindow& window;
  double max_gradient_norm = 0;  // 0: no clipping
  // Null: the loss is not scaled.
  LossScaler* scaler = nullptr;
  LossScalingReport* scaling_report = nullptr;
  // Called before each update, when what the ranks announced has been read. May be empty.
  const std::function<void()>& before_update;
  // Whether steps are computed as all later ones are: which way is faster is being tried one thing at a time.
  std::function<bool()> is_settled;
};

class StepMode {
 public:
  virtual ~StepMode() = default;

  virtual RoundVote& vote() = 0;
  // In how many rounds at most, the announcing one included, all ranks have read what one of them announced.
  virtual std::int64_t announcement_rounds() const = 0;

  // Around each round. The window has counted it.
  virtual void begin_batch() = 0;
  // True after an optimizer step. Ends the batch in flight, too.
  virtual bool end_batch() = 0;
  // Takes a step with what an unfinished window has, if it has anything. True if it did.
  virtual bool flush() = 0;

  // Its steps, where they can be captured as graphs; else why not, to be read after "because".
  virtual CapturableStep* capturable() { return nullptr; }
  virtual std::string why_not_capturable() const = 0;

  // Makes all ranks' parameters the same; whether they are. Collective.
  virtual void synchronise() {}
  virtual bool synchronised() const { return true; }
  // Whether training ends after this batch because a rank was asked to stop. All ranks say the same after the same
  // step.
  virtual bool stop_is_due() { return vote().stop_seen(); }

  // Between two batches: the model's parameters lie elsewhere now, or in another type, with the same values.
  virtual void parameters_moved() {}

  // Training is over: writes what this mode has to say to plan.json and the log. Collective.
  virtual void report() {}
  // Before any state is visited, and after all of it: what was announced has been read, and what the ranks have divided
  // among themselves is whole in between where the visitor needs it so. Collective.
  virtual void begin_visit(const StateVisitor& visitor) { static_cast<void>(visitor); }
  virtual void end_visit(const StateVisitor& visitor) { static_cast<void>(visitor); }
  virtual void visit(StateVisitor& visitor) { static_cast<void>(visitor); }
  // Whether parameters and optimizer state are the same on all ranks after every batch.
  virtual bool state_is_shared() const { return true; }
  // What of parameters and optimizer state this rank copies for a checkpoint: the ranks' ranges together are
  // everything, none twice. In host memory an update may copy them (UpdateCopy). None: a rank needs all of it for that.
  // The same answer on all ranks.
  virtual std::optional<std::vector<FlatRange>> copied_ranges() const { return std::nullopt; }
};

// Collective. The ranks' parameters are the same.
std::unique_ptr<StepMode> make_mode(const StepParts& parts, const StepOptions& options);

}  // namespace dtrain::train
