// The sharded strategy: each rank reduces its part of every bucket, updates the parameters there, and hands them to the
// others. It keeps only the optimizer state of its own parts, and on request only their gradients
// (GradientExchange::free_spare_gradients()). (Rajbhandari et al., ZeRO, arXiv:1910.02054, stages 1 and 2.)
//
// If all ranks share memory there is one copy of parameters and of the optimizer's state for all of them: the parts are
// updated in place, and nothing is gathered. Then no rank may write parameters while another computes with them:
// - before the update: GradientExchange::finish() ends with an all-reduce that every rank issues after its backward
//   (buckets are issued by hooks, inside backward, so their completion alone would not do). It is complete nowhere
//   before all ranks have issued it, so a rank that updates knows that no rank reads any more.
// - after the update: a barrier, which no rank leaves before all have updated their parts.
// Both are collectives of the communicator, which order memory as well. A model that writes parameters itself is
// refused (StrategyPicker::check_write).
#pragma once

#include <memory>
#include <vector>

#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "exchange/updater.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "run_services.h"

namespace dtrain::train {

// Returns the ranges that each rank updates: its part of every bucket, in the order of the buckets.
std::vector<std::vector<FlatRange>> parts_of_all(const FlatParameters& parameters, const comm::FusionPlan& plan,
                                                 int world_size);

class Sharded final : public GradientStrategy {
 public:
  // Collective. Parameters and optimizer state, which are complete and the same on every rank, move to other memory.
  Sharded(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
          profile::Recorder& recorder, const WindowScale& scale);
  // Moves the model's parameters back to memory of their own: the communicator's memory is gone before the model.
  ~Sharded() override;

  std::string_view operation() const override { return "reduce_scatter"; }
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;
  std::vector<FlatRange> spare_gradients(std::size_t bucket) const override;
  std::optional<at::Tensor> update(const Update& update) override;

  StateLayout layout() const override { return {true, one_copy_}; }
  std::optional<std::vector<FlatRange>> copied_ranges() const override {
    return std::vector<FlatRange>(updater_.own().begin(), updater_.own().end());
  }
  std::optional<std::vector<FlatRange>> divided_state() const override {
    return !one_copy_ && state_is_divided_ ? copied_ranges() : std::nullopt;
  }
  void complete_state() override;
  std::vector<at::Tensor> gather_state(std::size_t index) override;
  void begin_visit() override;
  void end_visit(bool replaced) override;

 private:
  void move_to_common_memory();
  void move_values_to_buffers();
  void gather_state();
  void keep_own_state();

  FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  const WindowScale& scale_;
  Updater updater_;
  bool one_copy_ = false;
  std::vector<std::unique_ptr<comm::Buffer>> memory_;
  const comm::FusionPlan* plan_ = nullptr;
  bool state_is_divided_ = false;  // each rank's state is right in its own parts only
};

}  // namespace dtrain::train
