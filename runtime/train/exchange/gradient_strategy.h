// The ways from gradients to an update: which ranks exchange them, in which form, and which rank updates which
// parameters. runtime/train/README.md has the table.
//
// GradientExchange knows which gradients are ready. It hands full buckets to launch() in plan order, and to complete()
// in the same order once they are exchanged. Then the step calls update(). All calls come from the training thread;
// during backward launch() comes from the thread that runs backward.
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
#include "model/tensor_memory.h"
#include "run_services.h"
#include "state_visitor.h"

namespace dtrain::train {

// The factors of sums of gradients on their way to an update. A strategy asks when it exchanges a bucket and keeps no
// copy: the number of ranks, and of the batches in a window, may have changed since.
class WindowScale {
 public:
  virtual ~WindowScale() = default;
  // The factor for the sum over the ranks and batches of a full window.
  virtual double full() const = 0;
  // The factor for the window that is being exchanged, on top of full(): 1 if it is full and every rank had all its
  // batches. May wait for the ranks' announcements.
  virtual double correction() = 0;
  // If the loss was scaled, the factor that undoes it in its gradients: one float32 on their device. Else undefined.
  virtual at::Tensor inverse_of_loss_scale() const { return {}; }
};

class LossScaler;

// One optimizer step over the gradients that were exchanged.
struct Update {
  std::span<const std::uint8_t> used;  // for each parameter: 1 if any rank used it in this window
  double correction = 1;               // the factor of gradients, applied first
  // Limit of the corrected gradients' L2 norm, over all parameters but those of groups with an own limit; 0: none.
  double max_norm = 0;
  // Not null: the loss was scaled. update() ends with end_update().
  LossScaler* scaler = nullptr;
  bool unscaled = false;  // the strategy has divided the gradients by the scale already
  double max_value = 0;   // the limit of each element of the same gradients, after the correction; 0: none
  // For each parameter: 1 if its model takes part in the step. Empty: all do. Others stay untouched.
  std::span<const std::uint8_t> in_step{};
};

// The places of a strategy's parameters and optimizer state.
struct StateLayout {
  bool sharded = false;   // a rank keeps the optimizer state of its own parts
  bool one_copy = false;  // the ranks share one copy of parameters and state
};

class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  virtual std::string_view operation() const = 0;  // name of a bucket's exchange in records: "all_reduce"
  // Sets the buckets. Only between windows, the same on every rank; the plan outlives its use. Collective.
  virtual void set_plan(const comm::FusionPlan& plan) = 0;
  // Starts the exchange of a bucket whose gradients are complete on this rank, possibly during backward.
  virtual comm::Work launch(std::size_t bucket) = 0;
  // Called after the Work of a bucket was joined. Its gradients are then the scaled sum over ranks (and over the
  // window's batches).
  virtual void complete(std::size_t bucket) { static_cast<void>(bucket); }
  // The gradients of a bucket that this rank does not need once they are exchanged.
  virtual std::vector<FlatRange> spare_gradients(std::size_t bucket) const {
    static_cast<void>(bucket);
    return {};
  }
  // Called when every bucket has been joined on this rank and every rank has finished its backward. On return all
  // parameters are up to date, on every rank (on a device: for the next work of its current stream). With clipping,
  // returns the gradients' norm before it: one float64 on the host, or on the device, where it may not be computed yet.
  virtual std::optional<at::Tensor> update(const Update& update) = 0;

  // True if the last update's buckets were exchanged like those of most steps. The same on all ranks.
  virtual bool exchanged_as_usual() const { return true; }
  virtual StateLayout layout() const { return {}; }
  // The ranges that this rank updates; if every rank updates everything, the rank's share of it. The ranges of all
  // ranks together cover everything once. Empty: the strategy has no such ranges.
  virtual std::optional<std::vector<FlatRange>> copied_ranges() const { return std::nullopt; }
  // True if every rank has all parameters and optimizer state after each update, and nothing else that matters later.
  virtual bool every_rank_has_all() const { return false; }
  // The ranges whose optimizer state is right on this rank; empty, on all ranks alike: all of it is.
  virtual std::optional<std::vector<FlatRange>> divided_state() const { return std::nullopt; }
  // Gives every rank the whole optimizer state, so that another strategy can go on. Collective.
  virtual void complete_state() {}
  // Copies one tensor of the optimizer state (by its index) for each group, complete on every rank; empty: every rank
  // has all of the state anyway. The state stays as it is. Collective.
  virtual std::vector<at::Tensor> gather_state(std::size_t index) {
    static_cast<void>(index);
    return {};
  }
  // To be called when training is over: writes this strategy's results to plan.json and the log. Collective.
  virtual void report(const RunServices& run) { static_cast<void>(run); }
  // To be called before and after a visit of the training state, as in StepMode. Collective.
  virtual void begin_visit() {}
  virtual void end_visit(bool replaced) { static_cast<void>(replaced); }
  // Visits the state that it keeps from step to step besides parameters and optimizer state.
  virtual void visit(StateVisitor& visitor) { static_cast<void>(visitor); }
};

}  // namespace dtrain::train
