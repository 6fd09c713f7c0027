// How gradients become an update: which ranks exchange them, in which form, and which rank updates which parameters.
// strategies/ has one class a file; runtime/train/README.md has the table.
//
// GradientExchange knows which gradients are ready. It hands full buckets to launch() in plan order, and to complete()
// in the same order once they are exchanged. Then the step calls update(). All calls come from the training thread,
// or, launch() during
// backward, from the thread that runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/fusion_plan.h"
#include "exchange/run_services.h"
#include "model/flat_range.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class LossScaler;

// One optimizer step over the gradients that were exchanged.
struct Update {
  std::span<const std::uint8_t> used;  // of each parameter: whether any rank used it in this window
  double correction = 1;               // what gradients are multiplied by before anything else
  double max_norm = 0;                 // then their L2 norm over all parameters is at most this; 0: no clipping
  // Not null: the loss was scaled. update() ends with end_update().
  LossScaler* scaler = nullptr;
  bool unscaled = false;  // the strategy has divided the gradients by the scale already
};

// Where a strategy keeps parameters and optimizer state.
struct StateLayout {
  bool sharded = false;   // a rank keeps the optimizer state of its own parts
  bool one_copy = false;  // the ranks share one copy of parameters and state
};

class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  virtual std::string_view operation() const = 0;  // "all_reduce": what it does to a bucket, in records
  // The buckets from now on. Between windows, on every rank the same; the plan outlives its use. Collective.
  virtual void set_plan(const comm::FusionPlan& plan) = 0;
  // Starts the exchange of a bucket of which this rank's gradients are complete, possibly during backward.
  virtual comm::Work launch(std::size_t bucket) = 0;
  // The Work of a bucket has been joined. Its gradients are the sum over ranks (and the window's batches), scaled.
  virtual void complete(std::size_t bucket) { static_cast<void>(bucket); }
  // Every bucket has been joined on this rank and every rank has finished its backward. On return all parameters are up
  // to date, on every rank (on a device: for what its current stream does next). Returns the gradients' norm before
  // clipping, where it was asked for: one float64 on the host or on the device, where it may not be there yet.
  virtual std::optional<at::Tensor> update(const Update& update) = 0;

  virtual StateLayout layout() const { return {}; }
  // The ranges that this rank updates, or those that it takes of what every rank updates: the ranks' together are
  // everything, none twice. None: it does not say.
  virtual std::optional<std::vector<FlatRange>> copied_ranges() const { return std::nullopt; }
  // Gives every rank the whole optimizer state, so that another strategy can go on. Collective.
  virtual void complete_state() {}
  // Training is over: writes what this strategy has to say to plan.json and the log. Collective.
  virtual void report(const RunServices& run) { static_cast<void>(run); }
  // Before and after a visit of the training state, as StepMode has it. Collective.
  virtual void begin_visit() {}
  virtual void end_visit(bool replaced) { static_cast<void>(replaced); }
  // What it keeps from step to step besides parameters and optimizer state.
  virtual void visit(StateVisitor& visitor) { static_cast<void>(visitor); }
};

}  // namespace dtrain::train
