// How a rank's batches become optimizer steps. ExchangeMode exchanges gradients in every window. In LocalMode each rank
// steps by itself and the ranks meet periodically. In AloneMode each rank steps by itself to the end. TrainingStep
// chooses one.
//
// TrainingStep calls it, from the training thread. Modes share the parts below; each owns what only it needs.
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
#include "step/gradient_norms.h"
#include "step/loss_scaling_report.h"
#include "step/non_finite.h"
#include "step/round_vote.h"
#include "step/step_models.h"
#include "step/step_options.h"

namespace dtrain::train {

// What every mode works with. All of it outlives the mode.
struct StepParts {
  const RunServices& run;
  FlatParameters& parameters;
  FlatOptimizer& optimizer;
  ParameterWatch& watch;
  Fusion& fusion;
  GradientExchange& exchange;
  StepsInFlight& in_flight;
  NonFinite& non_finite;
  AggregationWindow& window;
  StepModels& models;
  double max_gradient_norm = 0;   // 0: no clipping
  double max_gradient_value = 0;  // 0: no clipping
  // Null: the loss is not scaled.
  LossScaler* scaler = nullptr;
  LossScalingReport* scaling_report = nullptr;
};

// What ExchangeMode works with besides. All of it outlives the mode.
struct ExchangeParts {
  GradientNorms& gradient_norms;
  // Called before each update, after the ranks' announcements have been read. May be empty.
  const std::function<void()>& before_update;
  // False while training still compares two ways to compute a step. Only one such comparison runs at a time, so others
  // wait until this is true.
  std::function<bool()> is_settled;
};

// What a mode's step does on the device and on the host, apart, so that the device's part can be captured as a CUDA
// graph and launched again (graph/step_graph.h): between begin_capture() and end_capture() everything goes to the
// device and nothing of it is counted; for each launch the host's part comes before and after it.
class CapturableStep {
 public:
  virtual ~CapturableStep() = default;

  // Whether the next step with a batch on every rank gives the device the same work as every later one: nothing is
  // being tried any more. The ranks may disagree.
  virtual bool settled() = 0;

  // Around a batch whose work is captured. Error where the step does something that a graph would not repeat.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  // Of the two, one has failed on some rank: nothing has happened.
  virtual void abandon_capture() = 0;

  // Whether the last step that was not a replay used the parameters that the captured one did. The same on all ranks.
  virtual bool is_as_captured() const = 0;
  // Around each launch of what was captured. Every rank has a batch, and what the ranks announced has been read.
  virtual void before_replay() = 0;
  virtual void after_replay() = 0;
};

class StepMode {
 public:
  virtual ~StepMode() = default;

  virtual RoundVote& vote() = 0;
  // After how many rounds at most, the announcing one included, all ranks have read an announcement.
  virtual std::int64_t announcement_rounds() const = 0;

  // Around each round. The window has counted it.
  virtual void begin_batch() = 0;
  // With several models, before each backward: those that the next step updates are known.
  virtual void choose_models() {}
  // Within a batch, with several models: an optimizer step of those that wait for one. The window is one batch long.
  virtual void step_models() = 0;
  // True after an optimizer step. Also ends the batch in flight.
  virtual bool end_batch() = 0;
  // Instead of end_batch(), after a backward: drops its gradients, as if the batch had not been. All ranks do it, or
  // all get an error. ConfigError where the mode cannot.
  virtual void abandon_batch() = 0;
  // Takes a step with the gradients of an unfinished window, if there are any. True if it did.
  virtual bool flush() = 0;

  // The steps to capture as graphs; null if they cannot be captured. Then the reason, as the continuation of "because".
  virtual CapturableStep* capturable() { return nullptr; }
  virtual std::string why_not_capturable() const = 0;

  // Makes all ranks' parameters the same (collective); and whether they are.
  virtual void synchronise() {}
  virtual bool synchronised() const { return true; }
  // Whether training ends after this batch because a rank was asked to stop. The same on all ranks after the same step.
  virtual bool stop_is_due() { return vote().stop_seen(); }

  // To be called between two batches after the model's parameters have moved, or changed their type, with the same
  // values.
  virtual void parameters_moved() {}

  // To be called when training is over: writes this mode's results to plan.json and the log. Collective.
  virtual void report() {}
  // To be called before and after a visit of the training state. begin_visit() reads pending announcements. If the
  // visitor needs complete values, it also gives every rank the whole of what the ranks have divided among themselves;
  // end_visit() divides it again. Collective.
  virtual void begin_visit(const StateVisitor& visitor) { static_cast<void>(visitor); }
  virtual void end_visit(const StateVisitor& visitor) { static_cast<void>(visitor); }
  virtual void visit(StateVisitor& visitor) { static_cast<void>(visitor); }
  // As GradientStrategy has it. Collective.
  virtual std::vector<at::Tensor> gather_state(std::size_t index) {
    static_cast<void>(index);
    return {};
  }
  // Whether parameters and optimizer state are the same on all ranks after every batch.
  virtual bool state_is_shared() const { return true; }
  // The ranges of parameters and optimizer state that this rank copies for a checkpoint. The ranges of all ranks
  // together cover everything once. In host memory an update may copy them (UpdateCopy). Empty: a rank must copy all of
  // it. Whether it is empty is the same on all ranks.
  virtual std::optional<std::vector<FlatRange>> copied_ranges() const { return std::nullopt; }
};

}  // namespace dtrain::train
