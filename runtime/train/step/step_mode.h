// The ways in which a rank's batches become optimizer steps. ExchangeMode exchanges gradients in every window. In
// LocalMode each rank steps by itself and the ranks meet periodically. In AloneMode each rank steps by itself to the
// end.
//
// TrainingStep chooses a mode and calls it, from the training thread. Modes share the parts below; each owns the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/steps_in_flight.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "exchange/fusion.h"
#include "exchange/gradient_exchange.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "run_services.h"
#include "state_visitor.h"
#include "step/aggregation_window.h"
#include "step/round_vote.h"
#include "step/stability.h"
#include "step/step_options.h"

namespace dtrain::train {

// Keeps track of the models that the next optimizer step updates, where the trial has several (a generator and a
// discriminator).
class StepModels {
 public:
  // No names: the trial has one model, which every step updates.
  explicit StepModels(std::vector<std::string> names) : names_(std::move(names)), waiting_(names_.size(), 0) {}

  bool several() const { return !names_.empty(); }
  const std::vector<std::string>& names() const { return names_; }

  // backward() is called for these models (none: for all). The next step updates them. Error for an unknown name.
  void add(std::span<const std::string> models) {
    has_batch_ = true;
    if (models.empty()) std::fill(waiting_.begin(), waiting_.end(), 1);
    for (const std::string& model : models) waiting_[index_of(model)] = 1;
  }
  // For each model: 1 if backward() has been called for it since its last step.
  std::span<const std::uint8_t> waiting() const { return waiting_; }
  bool any_waiting() const { return std::find(waiting_.begin(), waiting_.end(), 1) != waiting_.end(); }
  void stepped() { std::fill(waiting_.begin(), waiting_.end(), 0); }

  // True if backward() has been called in this batch.
  bool has_batch() const { return has_batch_; }
  void begin_batch() { has_batch_ = false; }

  // Returns the names for a message: "'generator', 'discriminator'".
  std::string text(std::span<const std::uint8_t> models) const {
    std::string text;
    for (std::size_t i = 0; i < models.size(); ++i) {
      if (models[i]) text += (text.empty() ? "'" : ", '") + names_[i] + "'";
    }
    return text;
  }

  void visit(StateVisitor& visitor) {
    for (std::size_t i = 0; i < names_.size(); ++i) visitor.number(names_[i], waiting_[i]);
  }

 private:
  std::size_t index_of(const std::string& model) const {
    const auto found = std::find(names_.begin(), names_.end(), model);
    if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    throw Error("context.backward() was called for the model '" + model + "', which the trial has not wrapped",
                names_.empty() ? "the trial has one model, without a name" : "its models are " + join(names_, ", "));
  }

  const std::vector<std::string> names_;
  std::vector<std::uint8_t> waiting_;
  bool has_batch_ = false;
};

// The parts that every mode uses. All of them outlive the mode.
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

// The further parts that ExchangeMode uses. All of them outlive the mode.
struct ExchangeParts {
  GradientNorms& gradient_norms;
  // Called before each update, after the ranks' announcements have been read. May be empty.
  const std::function<void()>& before_update;
  // False while training still compares two ways to compute a step. Only one such comparison runs at a time, so others
  // wait until this is true.
  std::function<bool()> is_settled;
  // The values of a checkpoint replace the present ones before the first batch.
  bool values_follow = false;
  bool same_program = false;  // StepOptions::same_program
};

// Separates a step's work on the device from its work on the host, so that the device's part can be captured as a CUDA
// graph and launched again (step/step_graph.h). Between begin_capture() and end_capture() all work goes to the device
// and is not counted. For each launch the host's part comes before and after it.
class CapturableStep {
 public:
  virtual ~CapturableStep() = default;

  // True if the next step with a batch on every rank gives the device the same work as every later one: no comparison
  // of two ways to compute a step is running. The ranks may disagree.
  virtual bool settled() = 0;

  // Called around a batch whose work is captured. Error where the step does something that a graph would not repeat.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  // Undoes the capture when begin_capture() or end_capture() has failed on some rank.
  virtual void abandon_capture() = 0;

  // True if the last step that was not a replay used the same parameters as the captured one. The same on all ranks.
  virtual bool is_as_captured() const = 0;
  // Called around each launch of the graph. Every rank has a batch, and the ranks' announcements have been read.
  virtual void before_replay() = 0;
  virtual void after_replay() = 0;
};

class StepMode {
 public:
  virtual ~StepMode() = default;

  virtual RoundVote& vote() = 0;
  // The most rounds, the announcing one included, after which all ranks have read an announcement.
  virtual std::int64_t announcement_rounds() const = 0;

  // Called around each round. The window has counted the round.
  virtual void begin_batch() = 0;
  // With virtual ranks, called around the batch of each logical rank of this rank, in their order, between
  // begin_batch() and end_batch().
  virtual void begin_logical_rank(int /*logical_rank*/) {}
  virtual void end_logical_rank(int /*logical_rank*/) {}
  // With several models, called before each backward, when it is known which models the next step updates.
  virtual void choose_models() {}
  // With several models, within a batch of a one-batch window: takes an optimizer step of the models that wait for one.
  virtual void step_models() = 0;
  // Returns true after an optimizer step. Also ends the batch in flight.
  virtual bool end_batch() = 0;
  // Called instead of end_batch(), after a backward: drops the batch's gradients and takes the batch back. All ranks do
  // it, or all get an error. ConfigError where the mode cannot.
  virtual void abandon_batch() = 0;
  // Takes a step with the gradients of an unfinished window, if there are any. Returns true if it took a step.
  virtual bool flush() = 0;

  // The steps to capture as graphs; null if they cannot be captured. Then the second function gives the reason, as the
  // continuation of "because".
  virtual CapturableStep* capturable() { return nullptr; }
  virtual std::string why_not_capturable() const = 0;

  // Makes all ranks' parameters the same (collective). synchronised(): true if they are.
  virtual void synchronise() {}
  virtual bool synchronised() const { return true; }
  // True if training ends after this batch because a rank was asked to stop. The same on all ranks after the same step.
  virtual bool stop_is_due() { return vote().stop_seen(); }

  // To be called between two batches after the model's parameters have moved, or changed their type, with the same
  // values.
  virtual void parameters_moved() {}

  // To be called when training is over: writes this mode's results to plan.json and the log. Collective.
  virtual void report() {}
  // To be called before and after a visit of the training state. begin_visit() reads pending announcements. If the
  // visitor needs complete values, it also gives every rank all values that are divided among the ranks; end_visit()
  // divides them again. Collective.
  virtual void begin_visit(const StateVisitor& /*visitor*/) {}
  virtual void end_visit(const StateVisitor& /*visitor*/) {}
  virtual void visit(StateVisitor& /*visitor*/) {}
  // With virtual ranks: visits what belongs to the logical rank of this number among those of this rank.
  virtual void visit_logical_rank(std::size_t /*index*/, StateVisitor& /*visitor*/) {}
  // As GradientStrategy::gather_state(). Collective.
  virtual std::vector<at::Tensor> gather_state(std::size_t /*index*/) { return {}; }
  // True if parameters and optimizer state are the same on all ranks after every batch.
  virtual bool state_is_shared() const { return true; }
  // True if this rank has all parameters and optimizer state of the last update, and no exchange changes them: then any
  // rank may write them for all.
  virtual bool has_all() const { return false; }
  // The ranges of parameters and optimizer state that this rank copies for a checkpoint. The ranges of all ranks
  // together cover everything once. In host memory an update may copy them (UpdateCopy). Empty, on all ranks alike: a
  // rank must copy everything.
  virtual std::optional<std::vector<FlatRange>> copied_ranges() const { return std::nullopt; }
  // As GradientStrategy::divided_state().
  virtual std::optional<std::vector<FlatRange>> divided_state() const { return std::nullopt; }
};

}  // namespace dtrain::train
