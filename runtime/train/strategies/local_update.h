// A rank's own gradients update its own parameters: between two meetings of local steps, and in `--mock comm` to the
// end. Nothing here is collective.
#pragma once

#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"
#include "strategies/updater.h"

namespace dtrain::train {

class LocalUpdate final : public GradientStrategy {
 public:
  // The parameters that it updates: all, or those that would be this rank's part if updates were sharded.
  enum class Parts { kAll, kOfThisRank };
  LocalUpdate(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
              profile::Recorder& recorder, Parts parts);

  std::string_view operation() const override { return "none"; }
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;  // throws Error: nothing is exchanged
  std::optional<at::Tensor> update(const Update& update) override;

 private:
  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  const Parts parts_;
  Updater updater_;
};

}  // namespace dtrain::train
